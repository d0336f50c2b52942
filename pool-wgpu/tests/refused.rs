//! Frames that wgpu refuses, where the memory of their read-backs and receipts is not new: wgpu
//! counts the writes of earlier command buffers of a refused submission as done, so that a fresh
//! buffer shows what its memory had before.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::{ReadBack, ReadBacks, Unpooled, WgpuAllocator};
use present::devices;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder, ErrorFilter, PollType};

/// A buffer of the program, of one byte again and again.
fn filled(device: &WgpuAllocator, byte: u8) -> Buffer {
    let buffer = device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: KIB,
        usage: BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    device.queue().write_buffer(&buffer, 0, &[byte; 1024]);
    buffer
}

fn encoder(device: &WgpuAllocator) -> CommandEncoder {
    device.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// Makes wgpu refuse the submission of these commands.
fn spoil(device: &WgpuAllocator, commands: &mut CommandEncoder) {
    let destroyed = filled(device, 0);
    commands.clear_buffer(&destroyed, 0, None);
    destroyed.destroy();
}

/// Runs a call whose submission wgpu refuses.
fn refused<T>(device: &WgpuAllocator, call: impl FnOnce() -> T) -> T {
    let scope = device.device().push_error_scope(ErrorFilter::Validation);
    let result = call();
    let error = pin!(scope.pop()).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(error, Poll::Ready(Some(_))), "wgpu accepted it");
    result
}

fn wait_for_all(device: &WgpuAllocator) {
    device.device().poll(PollType::wait_indefinitely()).unwrap();
}

/// Reads a buffer back by the scope's own encoder.
fn read_back(device: &WgpuAllocator, through: &ReadBacks, from: &Buffer, bytes: u64) -> ReadBack {
    let mut scope = device.scope();
    let back = scope.read_back(through, &Unpooled(from), 0, bytes).unwrap();
    scope.submit().unwrap();
    back
}

/// Reads a buffer back by commands of the program, in a frame that wgpu refuses if `spoiled`.
fn frame(device: &WgpuAllocator, through: &ReadBacks, from: &Buffer, spoiled: bool) -> ReadBack {
    let (mut scope, mut own) = (device.scope(), encoder(device));
    let back = scope.read_back_in(&mut own, through, &Unpooled(from), 0, KIB).unwrap();
    if spoiled {
        spoil(device, &mut own);
    }
    let prologue = scope.prologue(&mut own).unwrap();
    let submit = || device.queue().submit(prologue.into_iter().chain([own.finish()]));
    if spoiled {
        refused(device, submit)
    } else {
        submit()
    };
    back
}

#[test]
fn a_refused_frame_reads_nothing_back_although_its_memory_had_a_frame_before() {
    for device in devices() {
        let (old, new) = (filled(&device, 0x5E), filled(&device, 7));
        // Chunks that go back to wgpu, and chunks that are kept.
        for backs in [0, MIB].map(|kept| device.read_backs(kept)) {
            for round in 0..3 {
                let back = frame(&device, &backs, &old, false);
                assert!(back.wait(|shown| shown == [0x5E; 1024]).unwrap());
                drop(back);
                wait_for_all(&device);
                let back = frame(&device, &backs, &new, true);
                let shown = back.wait(|shown| shown[0]);
                assert_eq!(shown.map_err(|error| error.why), Err(Why::NotSubmitted), "{round}");
                drop(back);
                wait_for_all(&device);
                assert_eq!(device.faults().len(), 1, "round {round}");
            }
        }
    }
}

#[test]
fn a_refused_step_reads_nothing_back_although_its_memory_had_a_step_before() {
    for device in devices() {
        let (old, new) = (filled(&device, 0x5E), filled(&device, 7));
        let backs = device.read_backs(0); // chunks go back to wgpu
        for round in 0..3 {
            let back = read_back(&device, &backs, &old, KIB);
            assert!(back.wait(|shown| shown == [0x5E; 1024]).unwrap());
            drop(back);
            wait_for_all(&device);
            let mut scope = device.scope();
            let _ = scope.encoder(); // the step is the program's
            let back = scope.read_back(&backs, &Unpooled(&new), 0, KIB).unwrap();
            scope.end_step();
            spoil(&device, scope.encoder()); // the next step, of the same submission
            assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
            let shown = back.wait(|shown| shown[0]);
            assert_eq!(shown.map_err(|error| error.why), Err(Why::NotSubmitted), "{round}");
            drop(back);
            wait_for_all(&device);
        }
    }
}

#[test]
fn the_first_prologue_of_a_program_is_told_if_wgpu_refuses_it() {
    for device in devices() {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(KIB, MIB));
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = scope.take(&pool, KIB).unwrap();
        scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[0x5E; 1024]).unwrap();
        drop(buffer);
        scope.submit().unwrap();
        // Chunks of the size of a receipt, which go back to wgpu with their stamps.
        let (source, backs) = (filled(&device, 0x5E), device.read_backs(0));
        let shown = [(); 4].map(|()| read_back(&device, &backs, &source, 1000));
        for back in &shown {
            back.wait(|_| ()).unwrap();
        }
        drop(shown);
        wait_for_all(&device);
        let (scope, mut own) = (device.scope(), encoder(&device));
        let reused = scope.take(&pool, KIB).unwrap();
        assert_eq!(pool.stats().hits, 1, "the prologue has to zero it");
        own.clear_buffer(&scope.lend(&reused).unwrap(), 0, Some(4));
        spoil(&device, &mut own);
        let prologue = scope.prologue(&mut own).unwrap();
        refused(&device, || device.queue().submit(prologue.into_iter().chain([own.finish()])));
        wait_for_all(&device);
        let faults = device.faults();
        let call = "a prologue that was left out, refused, or submitted too late";
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!((faults[0].why, faults[0].call), (Why::NotSubmitted, call));
    }
}

#[test]
fn frames_are_told_from_refused_ones_however_many_there_were() {
    for device in devices() {
        let (source, backs) = (filled(&device, 0x5E), device.read_backs(MIB));
        for round in 0..1500 {
            let spoiled = round % 7 == 0;
            let back = frame(&device, &backs, &source, spoiled);
            let shown = back.wait(|shown| shown == [0x5E; 1024]).map_err(|error| error.why);
            let expected = if spoiled { Err(Why::NotSubmitted) } else { Ok(true) };
            assert_eq!(shown, expected, "round {round}");
            drop(back);
            assert_eq!(device.faults().len(), usize::from(spoiled), "round {round}");
        }
    }
}
