//! A device that the program destroys: wgpu tells it in a poll, once the queue is empty, and refuses frames without
//! a word until then.

use crate::encoder;
use crate::present::devices;
use pool_core::{AllocError, BucketPool, KIB, MIB, Why};
use pool_wgpu::{Scope, WgpuAllocator};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use wgpu::{BufferUsages, Device, DeviceLostReason, PollType};

type Pool = BucketPool<WgpuAllocator>;

/// How often the program is told of the loss, as that of a device that it destroyed.
fn count_of_losses(device: &WgpuAllocator) -> Arc<AtomicU32> {
    let told = Arc::new(AtomicU32::new(0));
    let count = told.clone();
    device.on_lost(move |reason, _message| {
        assert_eq!(reason, DeviceLostReason::Destroyed);
        count.fetch_add(1, SeqCst);
    });
    told
}

/// Takes a buffer for an encoder of the program's own.
fn lent(pool: &Pool) -> Result<Scope, AllocError> {
    let scope = pool.allocator().scope();
    scope.lend(&scope.take(pool, KIB)?)?;
    Ok(scope)
}

/// Ends a frame.
type End = fn(&Pool, Scope) -> Result<(), AllocError>;

/// The ends of frames that have taken a buffer before the device was destroyed.
const ENDS: [End; 6] = [
    |pool, scope| Ok(scope.submit_with(encoder(pool.allocator())).map(drop)?),
    |_pool, mut scope| {
        scope.encoder().insert_debug_marker("a command");
        Ok(scope.submit().map(drop)?)
    },
    // The buffer is in another encoder, which is told where the device is not lost.
    |_pool, scope| Ok(scope.submit().map(drop)?),
    |_pool, mut scope| Ok(scope.flush().map(drop)?),
    |pool, scope| Ok(scope.prologue(&mut encoder(pool.allocator())).map(drop)?),
    // Nothing must run ahead.
    |pool, _scope| {
        Ok(pool.allocator().scope().prologue(&mut encoder(pool.allocator())).map(drop)?)
    },
];

#[test]
fn a_frame_that_a_destroyed_device_does_not_run_says_so() {
    for (number, end) in ENDS.into_iter().enumerate() {
        for device in devices() {
            let (pool, told) = (BucketPool::new(device.clone()), count_of_losses(&device));
            lent(&pool).unwrap().submit_with(encoder(&device)).unwrap();
            // Buffers of prologues are at hand, so that none is made later.
            for _ in 0..2 {
                let mut commands = encoder(&device);
                let prologue = lent(&pool).unwrap().prologue(&mut commands).unwrap();
                device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                device.device().poll(PollType::wait_indefinitely()).unwrap();
            }
            let scope = lent(&pool).unwrap();
            device.device().destroy();
            let ended = end(&pool, scope).map_err(|error| error.why());
            assert_eq!((ended, told.load(SeqCst)), (Err(Why::Lost), 1), "end {number}");
            assert_eq!(lent(&pool).map(drop).map_err(|error| error.why()), Err(Why::Lost));
            // wgpu tells it later.
            let _ = device.device().poll(PollType::wait_indefinitely());
            assert_eq!(told.load(SeqCst), 1, "end {number}");
        }
    }
}

/// A program that marked the loss itself is told all the same, once.
#[test]
fn a_loss_that_was_marked_is_told_by_wgpu() {
    for device in devices() {
        let told = count_of_losses(&device);
        device.mark_lost();
        device.device().destroy();
        for _ in 0..2 {
            let _ = device.device().poll(PollType::wait_indefinitely());
            assert_eq!(told.load(SeqCst), 1);
        }
    }
}

/// What the frames before left is no reason for another word.
#[test]
fn each_call_names_the_loss_of_a_destroyed_device() {
    for at in 0..11 {
        for device in devices() {
            let raw = device.device().clone();
            let lost = each_call(&device, &raw, at).map_err(|error| error.why());
            assert_eq!(lost, Err(Why::Lost), "call {at}");
        }
    }
}

/// Destroys the device, and does one thing then.
fn each_call(device: &WgpuAllocator, raw: &Device, at: usize) -> Result<(), AllocError> {
    let pool = BucketPool::new(device.clone());
    let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
    let data = device.frame_data(BufferUsages::COPY_SRC, KIB, MIB)?;
    let queue = pool.default_stream();
    let kept = pool.allocate(KIB)?;
    drop(pool.allocate(64 * KIB)?); // which is zeroed before it serves again
    let mut scope = device.scope();
    let mut commands = encoder(device);
    let buffer = scope.take(&pool, 64)?;
    scope.upload(&uploads, &buffer, 0, &[1; 64])?;
    scope.place(&data, &[1; 64])?;
    let back = scope.read_back_in(&mut commands, &backs, &buffer, 0, 64)?;
    let mut before = device.scope();
    let here = before.read_back(&backs, &kept, 0, 64)?;
    before.submit()?;
    here.wait(|_| ())?;
    let ready = scope.stream();
    if at == 7 {
        let prologue = scope.prologue(&mut commands)?;
        raw.destroy();
        device.queue().submit(prologue.into_iter().chain([commands.finish()]));
        device.submitted(&ready);
        return Ok(back.wait(|_| ())?);
    }
    raw.destroy();
    match at {
        // wgpu releases all memory here, and calls nobody: the callback is another's.
        8..=10 => {
            raw.set_device_lost_callback(|_, _| ());
            let _ = raw.poll(PollType::wait_indefinitely());
            match at {
                8 => Ok(here.lend(|_| ())?),
                9 => Ok(scope.upload(&uploads, &kept, 0, &[1; 64])?),
                _ => Ok(scope.place(&data, &[1; 64]).map(drop)?),
            }
        }
        0 => Ok(scope.submit_with(commands).map(drop)?),
        1 => Ok(scope.submit().map(drop)?),
        2 => Ok(kept.on(queue)?.write(0, &[1; 64])?),
        3 => {
            Ok(kept.on(queue)?.write(0, &[1; 64]).and(kept.on(queue)?.write_with(0, 64, |_| ()))?)
        }
        4 => pool.allocate(64 * KIB).map(drop),
        5 => pool.allocate(MIB).map(drop),
        _ => {
            let submitted = scope.submit_with(commands);
            Ok(back.wait(|_| ()).and(submitted.map(drop))?)
        }
    }
}

/// An engine and its interface, each with an allocator: the device's one callback is the second's.
#[test]
fn an_allocator_whose_callback_was_replaced_names_the_loss() {
    for device in devices() {
        let other = WgpuAllocator::new(device.device().clone(), device.queue().clone());
        let pool = BucketPool::new(device.clone());
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        let frame = || -> Result<(), AllocError> {
            let mut scope = device.scope();
            let (buffer, mut commands) = (scope.take(&pool, KIB)?, encoder(&device));
            scope.upload(&uploads, &buffer, 0, &[1; 1024])?;
            let back = scope.read_back_in(&mut commands, &backs, &buffer, 0, 64)?;
            scope.submit_with(commands)?;
            Ok(back.wait(|_| ())?)
        };
        frame().unwrap();
        let (mut scope, mut commands) = (device.scope(), encoder(&device));
        let kept = scope.take(&pool, KIB).unwrap();
        let back = scope.read_back_in(&mut commands, &backs, &kept, 0, 64).unwrap();
        scope.submit_with(commands).unwrap();
        device.device().destroy();
        let _ = device.device().poll(PollType::wait_indefinitely());
        assert_eq!(back.wait(|_| ()).map_err(|error| error.why), Err(Why::Lost));
        for _ in 0..3 {
            assert_eq!(frame().map_err(|error| error.why()), Err(Why::Lost));
        }
        drop(other);
    }
}
