//! One program for every memory: tiles of points on four threads, in a budget for two of them.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::array::PooledArray;
use bucketpool::limits::Budget;
use bucketpool::size::Bytes;
use bucketpool::{BucketPool, MIB, PoolStats, Transfer, Why};
use std::{error::Error, thread, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The sum of a tile's coordinates, halved, as the device has them.
fn half<A: Transfer>(pool: &BucketPool<A>, points: &[f32]) -> Result<f32> {
    let mut tile = PooledArray::from_slice(pool, [points.len() / 3, 3], points)?;
    let halves: Vec<f32> = tile.to_vec()?.iter().map(|coordinate| coordinate / 2.0).collect();
    tile.write(&halves)?; // here a program would launch a kernel on `tile.on(&stream)?`
    Ok(tile.to_vec()?.iter().sum())
}

/// Runs 40 tiles through a pool over any memory. Returns its statistics.
pub(crate) fn run<A: Transfer>(memory: A) -> Result<PoolStats> {
    println!("Four threads take ten tiles each of 1.14 MiB, from a pool that may reserve 4 MiB.");
    let budget = Budget::new(4 * MIB);
    budget.on_high_water(0.9, |now| {
        println!("High water: {} of 4 MiB are reserved.", Bytes(now.reserved_bytes));
    });
    let pool = BucketPool::builder(memory).budget(&budget).name("tiles").build();
    let patient = pool.with_timeout(Duration::from_mins(1));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u8)
            .map(|thread| {
                let pool = &patient;
                scope.spawn(move || -> Result<()> {
                    let points = vec![f32::from(thread); 3 * 100_000];
                    let expected = points.iter().sum::<f32>() / 2.0;
                    (0..10).try_for_each(|_| match half(pool, &points)? {
                        sum if (sum - expected).abs() <= expected / 1000.0 => Ok(()),
                        sum => Err(format!("the sum is {sum}, not {expected}").into()),
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a panic")?)
    })?;
    println!("All sums are right. A request that cannot fit is refused, and says why:\n");
    match pool.allocate(5 * MIB) {
        Err(refused) if matches!(refused.why(), Why::Limit(_)) => println!("{refused}\n"),
        other => return Err(format!("above the limit: {other:?}").into()),
    }
    let stats = pool.stats();
    assert!(stats.failures == 1 && stats.hit_rate() > 0.5, "{stats}");
    Ok(stats)
}
