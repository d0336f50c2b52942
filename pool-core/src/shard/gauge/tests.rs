use super::*;

#[test]
fn on_one_thread_current_and_peak_are_exact_at_every_step() {
    let (gauge, mut tally) = (Gauge::default(), Tally::default());
    let (mut live, mut peak, mut seed) = (0u64, 0u64, 1u64);
    for _ in 0..if cfg!(miri) { 300 } else { 10_000 } {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = (seed >> 33) % 100_000;
        if seed >> 63 == 0 {
            tally.add(bytes, &gauge);
            live += bytes;
        } else {
            let bytes = bytes.min(live);
            tally.subtract(bytes, &gauge);
            live -= bytes;
        }
        peak = peak.max(live);
        assert_eq!(gauge.read(&[tally]), (live, peak));
        assert_eq!(tally.peak_so_far(&gauge), peak);
    }
}

#[test]
#[cfg_attr(miri, ignore = "a bound that holds after many steps only")]
fn two_shards_agree_on_what_is_alive_and_nearly_on_the_peak() {
    let (gauge, mut one, mut two) = (Gauge::default(), Tally::default(), Tally::default());
    for _ in 0..1000 {
        one.add(10_000, &gauge);
        two.add(10_000, &gauge);
    }
    for _ in 0..1000 {
        two.subtract(20_000, &gauge); // freed on the other thread
    }
    let (current, peak) = gauge.read(&[one, two]);
    assert_eq!(current, 0);
    let slack = 2 * (20_000_000 >> UNREPORTED_SHIFT);
    assert!((20_000_000 - slack..=20_000_000 + slack).contains(&peak), "peak {peak}");
}

#[test]
fn a_reset_peak_starts_from_what_is_alive() {
    let (gauge, mut tally) = (Gauge::default(), Tally::default());
    tally.add(1000, &gauge);
    tally.subtract(600, &gauge);
    gauge.reset_peak([&mut tally].into_iter());
    assert_eq!(gauge.read(&[tally]), (400, 400));
}
