//! Findings 11, 14 and 22: the program's callbacks, and what the pool waits for.

use crate::present::{devices, noop, vulkan};
use crate::{encoder, own};
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::{InFlight, Unpooled, WgpuAllocator};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, MapMode, PollType};

/// A buffer whose mapping is ready: its callback runs in the next poll or submission, and notes it.
fn ready(device: &WgpuAllocator) -> (Buffer, Arc<AtomicBool>) {
    let mapped = device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: 64,
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let came = Arc::new(AtomicBool::new(false));
    let told = came.clone();
    mapped.map_async(MapMode::Read, .., move |_| told.store(true, SeqCst));
    (mapped, came)
}

/// The program may hold a lock that its callback takes.
#[test]
fn a_request_runs_no_callback_of_the_program() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let scope = device.scope();
        let (_mapped, came) = ready(&device);
        drop(pool.allocate(KIB).unwrap());
        let buffer = scope.take(&pool, KIB).unwrap();
        let again = device.scope();
        drop((buffer, again));
        assert!(!came.load(SeqCst), "a fresh block, and a hit in a scope");
        device.device().poll(PollType::Poll).unwrap();
        assert!(came.load(SeqCst));
    }
}

#[test]
fn a_program_that_polls_itself_is_not_called_by_uploads_and_scopes() {
    for polls in [true, false] {
        for device in devices() {
            let device = if polls { device } else { device.without_polling() };
            let (uploads, target) = (device.uploads(4 * KIB, MIB), own(&device, 8 * KIB));
            let mut scope = device.scope();
            scope.upload(&uploads, &Unpooled(&target), 0, &[1; 4096]).unwrap();
            let mut commands = encoder(&device);
            let prologue = scope.prologue(&mut commands).unwrap(); // neither is submitted
            let (_mapped, came) = ready(&device);
            let mut scope = device.scope();
            scope.upload(&uploads, &Unpooled(&target), 0, &[1; 4096]).unwrap();
            assert_eq!(came.load(SeqCst), polls);
            drop((prologue, commands));
        }
    }
}

/// Finding 14: an upload at its bound waits for the chunk that it needs, and not for all that is submitted.
#[test]
fn an_upload_waits_for_its_chunk_alone() {
    let Some(device) = vulkan() else { return };
    let target = own(&device, 4 * KIB);
    let uploads = device.bounded_uploads(4 * KIB, MIB, InFlight::Wait(4 * KIB));
    let mut scope = device.scope();
    scope.upload(&uploads, &Unpooled(&target), 0, &[1; 4096]).unwrap();
    let mut commands = encoder(&device);
    let prologue = scope.prologue(&mut commands).unwrap();
    device.queue().submit(prologue.into_iter().chain([commands.finish()]));
    // A long frame behind it, whose end the program hears of.
    let (from, to) = (own(&device, 64 * MIB), own(&device, 64 * MIB));
    let mut long = encoder(&device);
    for _ in 0..40 {
        long.copy_buffer_to_buffer(&from, 0, &to, 0, 64 * MIB);
    }
    let ended = Arc::new(AtomicBool::new(false));
    let told = ended.clone();
    long.on_submitted_work_done(move || told.store(true, SeqCst));
    device.queue().submit([long.finish()]);
    let mut scope = device.scope();
    scope.upload(&uploads, &Unpooled(&target), 0, &[2; 4096]).unwrap();
    assert!(!ended.load(SeqCst), "the upload waited for the long frame");
    drop(scope);
    device.device().poll(PollType::wait_indefinitely()).unwrap();
}

/// Finding 22: the program's callback for the loss of the device is kept.
#[test]
fn the_program_is_told_of_the_loss() {
    for device in devices() {
        let (told, expected) = (Arc::new(AtomicU32::new(0)), device.clone());
        let count = told.clone();
        device.on_lost(move |_reason, _message| {
            count.fetch_add(1, SeqCst);
        });
        expected.device().destroy();
        let _ = expected.device().poll(PollType::wait_indefinitely());
        assert_eq!(told.load(SeqCst), 1);
        let pool = BucketPool::new(device);
        assert_eq!(pool.allocate(KIB).unwrap_err().why(), Why::Lost);
    }
    // Without the callback, the error of a buffer tells.
    let device = noop();
    device.device().destroy();
    let _ = device.device().poll(PollType::wait_indefinitely());
    assert!(BucketPool::new(device).allocate(KIB).is_err());
}
