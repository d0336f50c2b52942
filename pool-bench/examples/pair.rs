//! Scratch.
use bucketpool::sim::SimDevice;
use bucketpool::{Arena, ArenaConfig, BucketPolicy, BucketPool};
use std::time::Instant;
fn main() {
    for live in [1_usize, 1000] {
        let pool = BucketPool::builder(Arena::over_pages(SimDevice::new(), ArenaConfig::grow()))
            .policy(BucketPolicy::Exact).granule(512).build();
        let mut v: Vec<_> = (0..live).map(|_| pool.allocate(65536).ok()).collect();
        let n = 4_000_000;
        let mut best = f64::MAX;
        for _ in 0..5 {
            let t = Instant::now();
            let mut i = 0;
            for _ in 0..n { v[i] = None; v[i] = std::hint::black_box(pool.allocate(std::hint::black_box(65536)).ok()); i += 1; if i == live { i = 0; } }
            best = best.min(t.elapsed().as_nanos() as f64 / n as f64);
        }
        println!("{live} {best:.1} ns {:?}", pool.stats().hit_rate());
    }
}
