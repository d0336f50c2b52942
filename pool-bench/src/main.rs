//! x
use pool_bench::*;
fn main() {
    let specs = spec::list(&std::env::args().nth(1).unwrap()).unwrap();
    let limit = std::env::args().nth(2).map(|s| sizes::cached_limit(&s).unwrap());
    for f in std::env::args().skip(3) {
        let t = trace::read(f.as_ref()).unwrap();
        for s in &specs {
            let o = replay::replay(
                &t,
                s,
                replay::Settings {
                    backend: replay::Backend::Sim,
                    cached_limit: limit,
                    capacity: None,
                },
            )
            .unwrap();
            println!(
                "{:16} {:14} {:.3} {:.2}% ns {:.0} calls {}",
                o.trace,
                o.policy,
                o.reserved_peak_bytes as f64 / o.live_peak_bytes as f64,
                100.0 * o.hits as f64 / o.allocations as f64,
                o.ns_per_op,
                o.device_allocations + o.device_frees
            );
        }
    }
}
