//! The texts of refused requests: what was wrong, with the values, and what was expected.

use pool_array::PooledArray;
use pool_core::error::Verdict;
use pool_core::limits::Budget;
use pool_core::port::Limit;
use pool_core::{AllocError, ArenaConfig, BucketPool, DeviceError, GIB, KIB, MIB, Why};
use pool_sim::{Call, Hooked, SimCall, SimDevice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::Duration;

fn lines(errors: &[AllocError]) -> String {
    let line = |error: &AllocError| format!("{:?}, {:?}: {error}\n", error.why(), error.verdict());
    errors.iter().map(line).collect()
}

#[test]
fn shapes_lengths_and_alignments_are_named_without_figures_of_memory() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(GIB).build();
    let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()).build();
    let _other = pool.allocate(MIB).unwrap();
    let errors = [
        PooledArray::from_slice(&pool, [3, 3], &[0.0_f32; 8]).unwrap_err(),
        PooledArray::from_slice(&pool, [2], &[0_u8; 3]).unwrap_err(),
        PooledArray::<f32, _>::new(&pool, [usize::MAX, 4]).unwrap_err(),
        PooledArray::<f64, _>::zeros(&pool, [1 << 30, 1 << 31]).unwrap_err(),
        pool.allocate_aligned(100, 3).unwrap_err(),
        pool.allocate_aligned(100, 0).unwrap_err(),
        pool.allocate_aligned(100, u64::MAX).unwrap_err(),
        pool.allocate_aligned(100, MIB).unwrap_err(),
        arena.allocate_aligned(100, MIB).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.verdict() == Verdict::Refused));
    assert_eq!((pool.stats().failures, arena.stats().failures), (8, 1));
    insta::assert_snapshot!(lines(&errors));
}

#[test]
fn an_array_names_both_lengths() {
    let pool = BucketPool::new(SimDevice::new());
    let mut array = PooledArray::<f32, _>::zeros(&pool, [3, 3]).unwrap();
    let mut buffer = pool.allocate(32).unwrap();
    let errors = [
        array.write(&[0.0; 8]).unwrap_err(),
        array.read_into(&mut [0.0; 10]).unwrap_err(),
        PooledArray::<f32, _>::zeros(&pool, 0).unwrap().read_into(&mut [0.0; 2]).unwrap_err(),
        buffer.write_at(30, &[0; 3]).unwrap_err(),
        buffer.read_at(u64::MAX, &mut [0]).unwrap_err(),
    ];
    insta::assert_snapshot!(errors.map(|error| format!("{:?}: {error}\n", error.why)).concat());
}

#[test]
fn a_request_that_cannot_fit_alone_is_told_so() {
    let limited = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    let budget = Budget::new(2 * MIB);
    let budgeted = BucketPool::builder(SimDevice::new()).budget(&budget).build();
    let device = BucketPool::new(SimDevice::with_capacity(4 * MIB));
    let mut errors = vec![limited.allocate(5 * MIB).unwrap_err()];
    let _live = (limited.allocate(100).unwrap(), device.allocate(MIB).unwrap());
    errors.push(limited.allocate(100 * MIB).unwrap_err());
    errors.push(budgeted.allocate(3 * MIB).unwrap_err());
    errors.push(device.allocate(1 << 60).unwrap_err());
    for error in &errors {
        assert!(error.to_string().contains("this request alone"), "{error}");
        assert!(!error.to_string().contains(" 0 B"), "{error}");
    }
    insta::assert_snapshot!(lines(&errors));
}

#[test]
fn an_error_is_printed_as_its_sentence_and_its_figures_on_request() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * KIB).build();
    let error = pool.allocate(MIB).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(format!("{error:#?}").contains("reserved_limit_bytes: 4096"), "{error:#?}");
    let cause = error.figures().cause;
    assert_eq!(format!("{cause:?}"), cause.to_string());
    let converted = AllocError::from(cause);
    assert_eq!(
        (converted.why(), converted.to_string()),
        (Why::Limit(Limit::Reserved), cause.to_string())
    );
}

#[test]
fn a_request_that_waited_says_how_long() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * KIB).build();
    let _live = pool.allocate(4096).unwrap();
    let error = pool.allocate_timeout(4096, Duration::from_millis(2)).unwrap_err().to_string();
    assert!(error.contains("wait for memory: no memory in time, after 2 ms; reserved"), "{error}");
}

#[test]
fn a_wait_that_could_not_help_is_not_begun() {
    let pool = BucketPool::new(SimDevice::with_capacity(4 * MIB));
    let _live = pool.allocate(MIB).unwrap();
    let error = pool.allocate_timeout(8 * MIB, Duration::from_hours(1)).unwrap_err();
    assert_eq!(error.why(), Why::OutOfMemory);
    let advice = "this request alone needs more than the device has free";
    assert!(error.to_string().ends_with(advice), "{error}");
}

#[test]
fn lost_memory_is_no_others() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone()).reserved_limit(4 * KIB).build();
    drop(pool.allocate(4096).unwrap());
    device.fail(SimCall::Free, 0, 1);
    let _ = pool.clear();
    let error = pool.allocate(4096).unwrap_err().to_string();
    assert!(error.contains("lost 4.00 KiB; the limit: raise it"), "{error}");
}

#[test]
fn a_small_request_is_shown_once() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * KIB).build();
    let _live = [pool.allocate(2048).unwrap(), pool.allocate(2000).unwrap()];
    let error = pool.allocate(100).unwrap_err();
    assert_eq!(error.why(), Why::Limit(Limit::Reserved));
    insta::assert_snapshot!(lines(&[error]));
}

/// Two pools of a budget: what one lacks, the other has.
#[test]
fn what_other_pools_of_the_budget_have_is_told() {
    let budget = Budget::new(64 * MIB);
    let pool = || BucketPool::builder(SimDevice::new()).budget(&budget).build();
    let (full, empty) = (pool(), pool());
    let _all = full.allocate(64 * MIB).unwrap();
    insta::assert_snapshot!(lines(&[empty.allocate(MIB).unwrap_err()]));
}

#[test]
fn a_warm_up_beyond_a_limit_names_that_limit() {
    let builder = || BucketPool::builder(SimDevice::new()).reserved_limit(64 * MIB);
    let cached = builder().cached_limit(32 * MIB).build();
    let bucket = builder().bucket_limit(2).build();
    let errors = [
        cached.warm_up(&[(32 * MIB, 2)]).unwrap_err(),
        cached.warm_up(&[(16 * MIB, 3)]).unwrap_err(),
        bucket.warm_up(&[(MIB, 3)]).unwrap_err(),
        builder().build().warm_up(&[(32 * MIB, 3)]).unwrap_err(),
    ];
    insta::assert_snapshot!(lines(&errors));
}

/// The figures of a request that never had its turn are those of its block.
#[test]
fn a_request_behind_another_one_is_rounded_too() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(64 * MIB).build();
    let _held = pool.allocate(48 * MIB).unwrap(); // a block of 64 MiB
    let mut first = pin!(pool.allocate_async(20 * MIB));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let behind = pool.allocate_timeout(20 * MIB, Duration::ZERO).unwrap_err();
    assert_eq!((behind.why(), behind.figures().rounded_bytes), (Why::TimedOut, 32 * MIB));
    assert!(behind.to_string().contains("in a block of 32.00 MiB"), "{behind}");
}

/// Who waits with the buffers that others wait for is told so; not where one was freed meanwhile.
#[test]
fn who_holds_and_waits_is_told_so() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(2 * MIB).build();
    let (one, other) = (pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap());
    let error = pool.allocate_timeout(MIB, Duration::ZERO).unwrap_err();
    assert_eq!(error.figures().freed_while_waiting, Some(0));
    let held = error.to_string();
    assert!(held.contains("take all that a step needs in one request"), "{held}");
    drop((one, other));
}

/// Too few addresses: what is left of them serves; none at all is told as that, and nothing goes.
#[test]
fn a_want_of_addresses_is_no_want_of_memory() {
    let refusals = Arc::new(AtomicU64::new(3));
    let left = refusals.clone();
    let refuse = move |_: &SimDevice, call: &Call<'_, SimDevice>| {
        let refuses = || left.try_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        match call {
            Call::Reserve if refuses() => Err(DeviceError::new(Why::OutOfAddresses, "reserve")),
            _ => Ok(()),
        }
    };
    let device = SimDevice::new();
    let builder = BucketPool::builder(Hooked::with(device.clone(), refuse));
    let pool = builder.arena(ArenaConfig::pages(64 * KIB, 0.05)).build();
    let large = pool.allocate(16 * MIB).unwrap();
    assert_eq!(refusals.load(SeqCst), 0, "three were refused, and fewer addresses served");
    drop((large, pool.allocate(MIB).unwrap()));
    let cached = pool.stats().cached_bytes;
    assert!(cached > 0);
    refusals.store(u64::MAX, SeqCst);
    let stream = device.stream();
    let refused = pool.allocate_on(&stream, 1 << 46).unwrap_err();
    assert_eq!((refused.why(), refused.verdict()), (Why::OutOfAddresses, Verdict::Refused));
    assert_eq!(pool.stats().cached_bytes, cached, "nothing goes back for it");
    insta::assert_snapshot!(lines(&[refused]));
}
