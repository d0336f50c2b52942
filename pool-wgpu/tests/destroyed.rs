//! A device that is destroyed while the pool has memory of it. wgpu destroys all buffers, and calls
//! the callbacks of mapped ones before it tells the loss; a program that catches no errors panics
//! at each.
#![expect(clippy::print_stderr, reason = "what did not run says so")]

mod present;

use parking_lot::Mutex;
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::WgpuAllocator;
use present::devices;
use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;
use wgpu::{BufferUsages, CommandEncoder, Device, PollType};

/// Destroys a device at one of the points that a program passes.
struct Destroyer {
    device: Device,
    /// The point, counted from 0.
    at: usize,
    passed: Cell<usize>,
    /// Whether wgpu tells the loss at once, by a poll.
    polls: bool,
}

impl Destroyer {
    fn pass(&self) {
        if self.passed.replace(self.passed.get() + 1) == self.at {
            self.device.destroy();
            if self.polls {
                let _ = self.device.poll(PollType::Poll);
            }
        }
    }
}

fn encoder(device: &WgpuAllocator) -> CommandEncoder {
    device.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// Frames in the scope's own encoder, with a prologue, and with a prologue that is dropped. Each
/// part may fail.
fn frames(device: &WgpuAllocator, destroyer: &Destroyer) -> Result<(), Box<dyn Error>> {
    let pool = BucketPool::new(device.clone());
    let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
    let placing = device.frame_data(BufferUsages::UNIFORM, KIB, MIB)?;
    for _ in 0..2 {
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB)?;
        destroyer.pass();
        scope.upload(&uploads, &buffer.on(&on)?, 0, &[1; 1024])?;
        destroyer.pass();
        scope.place(&placing, &[1; 64])?;
        destroyer.pass();
        let back = scope.read_back(&backs, &buffer.on(&on)?, 0, KIB)?;
        destroyer.pass();
        scope.end_step();
        destroyer.pass();
        scope.submit()?;
        destroyer.pass();
        let _ = back.wait(|_| ());
        destroyer.pass();
        drop(back);
        drop(buffer);
        destroyer.pass();

        let (mut scope, mut own) = (device.scope(), encoder(device));
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB)?;
        scope.upload(&uploads, &buffer.on(&on)?, 0, &[1; 1024])?;
        let back = scope.read_back_in(&mut own, &backs, &buffer.on(&on)?, 0, KIB)?;
        destroyer.pass();
        let prologue = scope.prologue(&mut own)?;
        destroyer.pass();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        destroyer.pass();
        let _ = device.device().poll(PollType::Poll);
        destroyer.pass();
        let _ = back.wait(|_| ());
        destroyer.pass();
        drop((back, buffer));

        let (scope, mut own) = (device.scope(), encoder(device));
        let buffer = pool.allocate_on(&scope.stream(), KIB)?; // which the prologue has to zero
        let prologue = scope.prologue(&mut own)?;
        destroyer.pass();
        drop((prologue, own)); // so it is zeroed now
        destroyer.pass();
        drop(buffer);
    }
    Ok(())
}

/// Destroys a device at one point of the frames after the other.
fn destroy_at_each_point(polls: bool) {
    for at in 0.. {
        let mut was_reached = false;
        for device in devices() {
            let errors = Arc::<Mutex<Vec<String>>>::default();
            let seen = errors.clone();
            let see = move |error: wgpu::Error| seen.lock().push(error.to_string());
            device.device().on_uncaptured_error(Arc::new(see));
            let passed = Cell::new(0);
            let destroyer = Destroyer { device: device.device().clone(), at, passed, polls };
            let ended = frames(&device, &destroyer);
            was_reached |= destroyer.passed.get() > at;
            assert_eq!(*errors.lock(), [""; 0], "destroyed at {at}, then {ended:?}");
        }
        if !was_reached {
            assert!(at >= 30, "the frames have more points than {at}");
            return;
        }
    }
}

#[test]
fn a_device_that_is_destroyed_causes_no_errors_of_wgpu() {
    destroy_at_each_point(true);
    destroy_at_each_point(false);
}

/// wgpu calls the callbacks inside of the program's poll, and unmapping a destroyed buffer panics
/// where the program catches no errors.
#[test]
fn a_poll_of_a_destroyed_device_with_a_prologue_out_does_not_panic() {
    for device in devices() {
        let raw = device.device().clone();
        let mut own = encoder(&device);
        let prologue = device.scope().prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        raw.destroy();
        let _ = raw.poll(PollType::wait_indefinitely());
        let refused = device.scope().prologue(&mut encoder(&device)).unwrap_err();
        assert_eq!(refused.why, Why::Lost);
    }
}

#[test]
fn a_read_back_is_dropped_after_a_loss_that_the_pool_was_not_told_of() {
    for device in devices() {
        let (raw, queue) = (device.device().clone(), device.queue().clone());
        let device = WgpuAllocator::without_lost_callback(raw.clone(), queue);
        let pool = BucketPool::new(device.clone());
        let backs = device.read_backs(MIB);
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let back = scope.read_back(&backs, &buffer.on(&on).unwrap(), 0, KIB).unwrap();
        scope.submit().unwrap();
        back.wait(|_| ()).unwrap();
        raw.destroy();
        let _ = raw.poll(PollType::wait_indefinitely());
        assert!(back.lend(|_| ()).is_err(), "its memory is gone");
        drop(back);
        assert_eq!(backs.reserved_bytes(), 0);
    }
}
