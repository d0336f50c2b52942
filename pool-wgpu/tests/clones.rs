//! Clones that outlive their pooled buffers are found, in debug builds.
#![expect(clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::{BucketPool, KIB, Why};
use present::{noop, of_the_queue, vulkan};

#[test]
fn a_device_without_a_report_says_so() {
    let refused = noop().kept_clones().unwrap_err();
    assert_eq!((refused.why, refused.call), (Why::Unsupported, "report of kept clones"));
}

#[test]
#[cfg(debug_assertions)]
fn a_clone_is_found_once_its_buffer_went_back_to_wgpu() {
    let Some(device) = vulkan() else { return };
    let pool = BucketPool::new(device.clone());
    let scope = device.scope();
    let on = scope.stream();
    let (kept, other) = (pool.allocate(1000).unwrap(), pool.allocate(2 * KIB).unwrap());
    let clone = kept.on(&on).unwrap().buffer().unwrap().clone();
    // What the queue is to write holds the buffer too, until it is submitted.
    other.on(&of_the_queue(&device)).unwrap().write(0, &[1; 16]).unwrap();
    drop((kept, other, scope));
    assert!(device.kept_clones().unwrap().is_empty(), "nothing tells while it is pooled");
    pool.clear().unwrap();
    let found = device.kept_clones().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("bucketpool ") && found[0].ends_with(": 1024 bytes"), "{found:?}");
    drop(clone);
    assert!(device.kept_clones().unwrap().is_empty());
}
