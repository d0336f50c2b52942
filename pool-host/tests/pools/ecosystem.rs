//! Collections and arrays whose memory is pooled.
#![cfg(feature = "allocator-api2")]

use allocator_api2::alloc::{Allocator, Layout};
use allocator_api2::vec::Vec;
use ndarray::{Axis, Ix2, Ix3, Zip, array};
use pool_array::PooledArray;
use pool_core::{BucketPolicy, BucketPool, KIB, Limit, Why};
use pool_host::{HostAllocator, InPool, PinnedAllocator, Tcache, global};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

static TCACHE: Tcache = Tcache::new();

fn pool() -> BucketPool<HostAllocator> {
    BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact).build()
}

#[test]
fn vectors_and_maps_grow_and_give_their_memory_back() {
    let pool = pool();
    let mut numbers: Vec<u64, _> = Vec::new_in(InPool::new(&pool));
    numbers.extend(0..10_000);
    let mut map = hashbrown::HashMap::new_in(InPool::new(&pool));
    for number in &numbers {
        map.insert(*number, number * 2);
    }
    drop(pool.clone());
    assert!(map.iter().all(|(number, twice)| 2 * number == *twice));
    assert_eq!((numbers.len(), map.len()), (10_000, 10_000));
    assert!(pool.allocated_bytes() > 80_000 + 160_000);
    drop((numbers, map));
    assert_eq!(pool.allocated_bytes(), 0);
    assert!(pool.stats().hits + pool.stats().misses > 10);
}

#[test]
fn collections_may_outlive_their_pool_and_change_threads() {
    let pool = pool();
    let mut numbers: Vec<u32, _> = Vec::new_in(InPool::new(&pool));
    numbers.extend(0..1000);
    drop(pool);
    let sum = std::thread::spawn(move || numbers.iter().sum::<u32>()).join().unwrap();
    assert_eq!(sum, 499_500);
}

#[test]
fn collections_get_the_size_and_alignment_they_request() {
    let pool = BucketPool::new(PinnedAllocator::new());
    for (bytes, align) in [(0, 1), (1, 1), (3, 2), (100, 64), (5000, 2048)] {
        let layout = Layout::from_size_align(bytes, align).unwrap();
        let (a, b) = (InPool::new(&pool), &TCACHE);
        for data in [a.allocate(layout).unwrap(), b.allocate(layout).unwrap()] {
            assert_eq!((data.len(), data.cast::<u8>().as_ptr().addr() % align), (bytes, 0));
        }
    }
    let impossible = Layout::from_size_align(8, 8192).unwrap();
    assert!(InPool::new(&pool).allocate(impossible).is_err(), "above a page");
}

#[test]
fn a_buffer_passed_on_as_bytes_comes_back_with_the_last_clone() {
    let pool = pool();
    let mut buffer = pool.allocate(5000).unwrap();
    buffer.fill(7);
    let start = buffer.as_ptr();
    let bytes = bytes::Bytes::from_owner(buffer);
    assert_eq!((bytes.as_ptr(), bytes.len()), (start, 5000), "not a copy");
    let part = bytes.slice(1000..1010);
    drop(bytes);
    let sum = std::thread::spawn(move || part.iter().map(|byte| u32::from(*byte)).sum::<u32>());
    assert_eq!(sum.join().unwrap(), 70);
    assert_eq!(pool.allocated_bytes(), 0);
    assert_eq!(pool.allocate(5000).unwrap().as_ptr(), start, "the same memory");
}

#[test]
fn a_vector_grows_in_the_tcache() {
    let mut numbers: Vec<u8, &Tcache> = Vec::new_in(&TCACHE);
    numbers.extend(std::iter::repeat_n(7, 100_000));
    assert!(numbers.iter().all(|number| *number == 7));
}

#[test]
fn arrays_are_views_of_pooled_memory() {
    let pool = pool();
    let mut a = PooledArray::<f64, _>::zeros(&pool, (2, 3)).unwrap();
    let zeros = array![[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]];
    assert_eq!(a.view_as::<Ix2>(), Some(zeros.view()));
    assert!(a.view_as::<Ix3>().is_none());
    a.view_mut_as::<Ix2>().unwrap().row_mut(1).fill(2.0);
    assert_eq!(a.view().sum_axis(Axis(0)), array![2.0, 2.0, 2.0].into_dyn());
    let b = PooledArray::from_elem(&pool, (2, 3), 3.0).unwrap();
    let product = &a.view() * &b.view();
    Zip::from(&mut a).and(&product).and(&b).for_each(|a, p, _b| *a = *p);
    assert_eq!(&*a, [0.0, 0.0, 0.0, 6.0, 6.0, 6.0]);
    assert_eq!(pool.allocated_bytes(), 2 * 64, "in steps of 64 bytes");
    let copy = PooledArray::from_view(&pool, &a.view().reversed_axes()).unwrap();
    assert_eq!((copy.shape(), copy[[2, 1]]), (&[3, 2][..], 6.0));
    drop((a, b, copy));
    let dirty = PooledArray::<f64, _>::new(&pool, 6).unwrap();
    assert!(dirty.iter().any(|number| *number != 0.0), "the same memory, as it was left");
    drop(dirty);
    assert_eq!(&*PooledArray::<f64, _>::zeros(&pool, [6]).unwrap(), [0.0; 6]);
}

#[test]
fn operators_take_their_results_from_the_pool_of_their_operands() {
    let pool = pool();
    let a = PooledArray::from_slice(&pool, (2, 2), &[1.0, 2.0, 3.0, 4.0_f64]).unwrap();
    let b = PooledArray::from_elem(&pool, (2, 2), 2.0).unwrap();
    assert_eq!(*(&a + &b), [3.0, 4.0, 5.0, 6.0]);
    assert_eq!(*(&a - &b), [-1.0, 0.0, 1.0, 2.0]);
    assert_eq!(*(&a * 10.0), [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(*(-&a), [-1.0, -2.0, -3.0, -4.0]);
    assert_eq!(
        *(&b - a.clone()),
        [1.0, 0.0, -1.0, -2.0],
        "left minus right, in the right's memory"
    );
    let before = pool.stats().allocations;
    let mut c = (&a + &b) / 2.0 - &b + a.clone();
    assert_eq!(pool.stats().allocations - before, 2, "one for the sum, one for the clone");
    c += 1.0;
    c *= &a;
    assert_eq!((&c[..], c[[1, 1]], c.sum()), (&[1.5, 6.0, 13.5, 24.0][..], 24.0, 45.0));
    c[[0, 1]] = 0.5;
    assert_eq!((c[1], &c[2..], c.elements()), (0.5, &[13.5, 24.0][..], 4));
    let words = a.map(|value| value.to_bits()).unwrap();
    assert_eq!((words.shape(), words[0]), (a.shape(), 1.0_f64.to_bits()));
    assert_eq!(c.to_vec().unwrap(), c[..]);
    assert_eq!(pool.stats().failures, 0);
}

#[test]
fn operators_serve_after_the_last_handle_of_the_pool() {
    let pool = pool();
    let a = PooledArray::from_slice(&pool, 3, &[1.0, 2.0, 3.0_f64]).unwrap();
    assert!(a.pool().is_some());
    drop(pool);
    assert!(a.pool().is_none());
    let sum = &a + &a;
    drop(a);
    assert_eq!(*(&sum.clone() * 2.0), [4.0, 8.0, 12.0]);
}

#[test]
fn results_wait_as_the_handle_of_their_operand_does() {
    let builder = BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact);
    let pool = builder.reserved_limit(64).build();
    for (handle, why) in [
        (pool.with_timeout(Duration::ZERO), Why::TimedOut),
        (pool.clone(), Why::Limit(Limit::Reserved)),
    ] {
        let a = PooledArray::from_elem(&handle, 8, 1.0_f64).unwrap();
        assert_eq!(a.try_clone().unwrap_err().why(), why);
    }
}

#[test]
fn an_array_is_as_large_as_a_cache_line() {
    assert_eq!(size_of::<Bytes>(), 64);
}

#[test]
fn arrays_of_two_shapes_are_refused_by_name() {
    let pool = pool();
    let [a, b] = [(2, 3), (3, 2)].map(|shape| PooledArray::from_elem(&pool, shape, 1_u8).unwrap());
    assert_eq!(a.zip_with(&b, |a, b| a + b).unwrap_err().why(), Why::ShapeMismatch);
    for add in [|a: &Bytes, b: &Bytes| a + b, |a: &Bytes, b: &Bytes| a.clone() + b] {
        let caught = catch_unwind(AssertUnwindSafe(|| add(&a, &b)));
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("shape"), "{message}");
    }
    let caught = catch_unwind(AssertUnwindSafe(|| a[[1, 3]]));
    let message = *caught.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "index [1, 3] is outside of an array of the shape [2, 3]");
    let refused = PooledArray::from_slice(&pool, 3, &[1_u32, 2]).unwrap_err();
    assert_eq!(refused.why(), Why::WrongLength, "{refused}");
}

/// An array of bytes in host memory.
type Bytes = PooledArray<u8, HostAllocator>;

#[test]
fn arrays_have_any_shape_that_fits_in_memory() {
    let points = PooledArray::<u16, _>::new(global(), [4, 5, 6]).unwrap();
    assert_eq!((points.len(), points.view().ndim()), (120, 3));
    let none = PooledArray::<u16, _>::new(global(), [4, 0, 6]).unwrap();
    assert_eq!((none.len(), none.view().dim()), (0, ndarray::IxDyn(&[4, 0, 6])));
    let error = PooledArray::<u64, _>::new(global(), [usize::MAX, 2]).unwrap_err();
    assert_eq!(error.why(), Why::TooLarge, "{error}");
    let error = PooledArray::<u64, _>::new(global(), [0, usize::MAX, 2]).unwrap_err();
    assert_eq!(error.why(), Why::TooLarge, "as `ndarray` sees it: {error}");
    assert!(global().stats().cached_bytes < 64 * KIB, "only small arrays were made");
}
