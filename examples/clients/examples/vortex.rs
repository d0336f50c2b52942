//! Vortex buffers in a pool: its allocator is one of `allocator-api2`, and so is `InPool`.
//!
//! `cargo run --release --manifest-path examples/clients/Cargo.toml --example vortex`

use bucketpool::{BucketPolicy, BucketPool, MIB};
use bucketpool::host::{HostAllocator, InPool};
use bucketpool_clients::compare;
use vortex_buffer::{Buffer, BufferAllocatorRef};

/// Builds a buffer from an allocator, as an encoder of a column does.
fn encode(allocator: &BufferAllocatorRef, rows: usize, seed: u32) -> Buffer<u32> {
    let mut buffer = allocator.with_capacity::<u32>(rows);
    buffer.extend((0..rows as u32).map(|row| row.wrapping_mul(seed)));
    buffer.freeze()
}

/// Encodes batches of eight columns, and sums each batch up before it is dropped.
fn sum(allocator: &BufferAllocatorRef, rows: usize) -> u64 {
    let batch =
        || -> Vec<Buffer<u32>> { (1..=8).map(|seed| encode(allocator, rows, seed)).collect() };
    let values = |batch: Vec<Buffer<u32>>| -> u64 {
        batch.iter().flat_map(|column| column.iter()).map(|value| u64::from(*value)).sum()
    };
    (0..(1 << 20) / rows).map(|_| values(batch())).sum()
}

fn main() {
    let pool = BucketPool::builder(HostAllocator::new())
        .policy(BucketPolicy::PowerOfTwo)
        .cached_limit(256 * MIB)
        .build();
    let (own, pooled) =
        (BufferAllocatorRef::statically_allocated(), BufferAllocatorRef::new(InPool::new(&pool)));
    for rows in [1 << 13, 1 << 17, 1 << 20] {
        compare(
            &format!("{} batches of 8 columns with {rows} rows", (1 << 20) / rows),
            || sum(&own, rows),
            || sum(&pooled, rows),
        );
    }
    let column = encode(&pooled, 1000, 3);
    assert!(pool.stats().allocated_bytes >= 4000);
    drop(column);
    assert_eq!(pool.stats().allocated_bytes, 0);
    println!("{}", pool.stats());
}
