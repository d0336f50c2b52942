//! Clones that outlive their pooled buffers are found, in debug builds.
#![expect(clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use parking_lot::Mutex;
use pool_core::{BucketPool, KIB, Why};
use present::{noop, vulkan};

/// What was logged.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("pool_wgpu")
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LOGGED.lock().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

#[test]
fn a_device_without_a_report_says_so() {
    let refused = noop().kept_clones().unwrap_err();
    assert_eq!((refused.why, refused.call), (Why::Unsupported, "report of kept clones"));
}

#[test]
#[cfg(debug_assertions)]
fn a_clone_is_found_once_its_buffer_went_back_to_wgpu() {
    let Some(device) = vulkan() else { return };
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let pool = BucketPool::new(device.clone());
    let on = present::of_the_queue(&device);
    let (kept, other) = (pool.allocate(KIB).unwrap(), pool.allocate(2 * KIB).unwrap());
    let clone = kept.on(&on).unwrap().buffer().clone();
    drop((kept, other));
    assert!(device.kept_clones().unwrap().is_empty(), "nothing tells while it is pooled");
    pool.clear().unwrap();
    assert_eq!(device.kept_clones().unwrap(), ["bucketpool 0: 1024 bytes"]);
    drop(clone);
    assert!(device.kept_clones().unwrap().is_empty());

    let last = pool.allocate(4 * KIB).unwrap();
    let clone = last.on(&on).unwrap().buffer().clone();
    drop((last, pool));
    device.device().poll(wgpu::PollType::wait_indefinitely()).unwrap();
    assert_eq!(*LOGGED.lock(), [""; 0]);
    drop(device);
    let told = "a clone or a bind group of a pooled buffer outlives it: bucketpool 2: 4096 bytes";
    assert_eq!(*LOGGED.lock(), [told]);
    drop(clone);
}
