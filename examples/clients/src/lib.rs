//! Measures two ways to do the same work, in turns.

use rustix::time::{ClockId, clock_gettime};

/// Rounds; the median of their ratios counts.
const ROUNDS: usize = 15;

/// Returns the CPU time of this thread in nanoseconds.
pub fn cpu_ns() -> f64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads of this process in nanoseconds.
pub fn process_cpu_ns() -> f64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Runs both ways in turns, checks that they give the same result, and prints a line with the
/// median of each and of their ratio.
///
/// With `--smoke` on the command line there is one round.
pub fn compare<R: PartialEq + std::fmt::Debug>(
    what: &str,
    mut own: impl FnMut() -> R,
    mut pooled: impl FnMut() -> R,
) {
    let rounds = if std::env::args().any(|word| word == "--smoke") { 1 } else { ROUNDS };
    let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    // The first round is cold and does not count.
    for round in 0..=rounds {
        let start = cpu_ns();
        let expected = own();
        let middle = cpu_ns();
        let result = pooled();
        let end = cpu_ns();
        assert_eq!(expected, result, "{what}: both ways give the same result");
        if round > 0 {
            times[0].push(middle - start);
            times[1].push(end - middle);
            ratios.push((end - middle) / (middle - start));
        }
    }
    let [own, pooled] = times.map(median);
    let ratio = median(ratios);
    println!(
        "{what}: own way {:.2} ms, pooled {:.2} ms, {ratio:.2} times as long",
        own / 1e6,
        pooled / 1e6
    );
}

/// Returns the median, the upper one of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
