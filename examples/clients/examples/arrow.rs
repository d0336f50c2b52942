//! Columns of arrow in a pool: `Buffer::from_custom_allocation` takes memory with an owner, and the
//! owner is a pooled buffer. When the last array on it is dropped, the pool has the memory again.
//!
//! `cargo run --release --manifest-path examples/clients/Cargo.toml --example arrow`

use arrow_array::Float64Array;
use arrow_buffer::{Buffer, ScalarBuffer};
use bucketpool::{AllocError, BucketPolicy, BucketPool, MIB, PooledBuffer};
use bucketpool::host::HostAllocator;
use bucketpool_clients::compare;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment that arrow recommends for its buffers.
const ALIGN: u64 = 64;

/// Computes a column into memory of the pool.
fn pooled(
    pool: &BucketPool<HostAllocator>,
    rows: usize,
    seed: f64,
) -> Result<Float64Array, AllocError> {
    let mut memory: PooledBuffer<HostAllocator> =
        pool.allocate_aligned((rows * size_of::<f64>()) as u64, ALIGN)?;
    for (row, value) in memory.chunks_exact_mut(size_of::<f64>()).take(rows).enumerate() {
        value.copy_from_slice(&(seed * row as f64).to_ne_bytes());
    }
    let (start, bytes) = (NonNull::from(&mut memory[..]).cast(), rows * size_of::<f64>());
    let owner = Arc::new(memory);
    // SAFETY: `start` is the first of `bytes` initialised bytes of the buffer that the owner keeps.
    // A pooled buffer does not move its memory, and no code but the array reads it from here on.
    let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, owner) };
    Ok(Float64Array::new(ScalarBuffer::new(buffer, 0, rows), None))
}

/// Computes the same column into memory of arrow's own.
fn own(rows: usize, seed: f64) -> Float64Array {
    (0..rows).map(|row| seed * row as f64).collect::<Vec<f64>>().into()
}

fn sum(columns: &[Float64Array]) -> f64 {
    columns.iter().flat_map(|column| column.values().iter()).sum()
}

fn main() -> Result<(), AllocError> {
    let pool = BucketPool::builder(HostAllocator::new())
        .policy(BucketPolicy::PowerOfTwo)
        .cached_limit(256 * MIB)
        .build();
    for rows in [1 << 13, 1 << 17, 1 << 20] {
        let batches = (1 << 22) / rows;
        compare(
            &format!("{batches} batches of 4 columns with {rows} rows"),
            || {
                (0..batches)
                    .map(|at| sum(&[1, 2, 3, 4].map(|c| own(rows, (at * c) as f64))))
                    .sum::<f64>()
            },
            || {
                let column = |seed| pooled(&pool, rows, seed).expect("within the limits");
                (0..batches)
                    .map(|at| sum(&[1, 2, 3, 4].map(|c| column((at * c) as f64))))
                    .sum::<f64>()
            },
        );
    }
    // A slice of a column keeps the memory until it is dropped.
    let slice = pooled(&pool, 1000, 2.0)?.slice(10, 5);
    let live = pool.stats().allocated_bytes;
    assert_eq!((slice.value(0), live > 0), (20.0, true));
    drop(slice);
    assert_eq!(pool.stats().allocated_bytes, 0);
    println!("{}", pool.stats());
    Ok(())
}
