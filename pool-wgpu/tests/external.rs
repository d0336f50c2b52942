//! Buffers of a pool in encoders and submissions that the pool does not own.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::{
    BucketPool, DeviceAllocator as _, KIB, MIB, PooledBuffer, StreamClock as _, Why, ZeroPolicy,
};
use pool_wgpu::{Scope, Unpooled, WgpuAllocator};
use present::{devices, of_the_queue, uncleared};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder, PollType};

/// The program's own encoder.
fn encoder(device: &WgpuAllocator) -> CommandEncoder {
    device.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// The program's own buffer of one byte again and again.
fn source(device: &WgpuAllocator, byte: u8) -> Buffer {
    let source = device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: KIB,
        usage: BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    device.queue().write_buffer(&source, 0, &[byte; 1024]);
    source
}

/// A block that the pool must zero for its next owner.
fn dirty(device: &WgpuAllocator, pool: &BucketPool<WgpuAllocator>) {
    let uploads = device.uploads(KIB, KIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[0xAB; 1024]).unwrap();
    drop(buffer);
    scope.submit().unwrap();
}

fn shown(device: &WgpuAllocator, buffer: &PooledBuffer<WgpuAllocator>) -> Vec<u8> {
    let backs = device.read_backs(MIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let back = scope.read_back(&backs, &buffer.on(&on).unwrap(), 0, KIB).unwrap();
    scope.submit().unwrap();
    back.wait(<[u8]>::to_vec).unwrap()
}

/// The bytes of the program's own buffer.
fn bytes_of(device: &WgpuAllocator, buffer: &Buffer) -> Vec<u8> {
    let backs = device.read_backs(MIB);
    let mut scope = device.scope();
    let back = scope.read_back(&backs, &Unpooled(buffer), 0, KIB).unwrap();
    scope.submit().unwrap();
    back.wait(<[u8]>::to_vec).unwrap()
}

/// A scope, and a buffer of it that the pool must zero.
fn unzeroed(
    device: &WgpuAllocator,
    pool: &BucketPool<WgpuAllocator>,
) -> (Scope, PooledBuffer<WgpuAllocator>) {
    dirty(device, pool);
    let scope = device.scope();
    let buffer = pool.allocate_on(&scope.stream(), KIB).unwrap();
    assert_eq!(pool.stats().hits, 1);
    (scope, buffer)
}

#[test]
fn h1a_zeroing_that_would_come_after_the_programs_commands_is_refused() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, buffer) = unzeroed(&device, &pool);
        let (on, source) = (scope.stream(), source(&device, 7));
        let mut own = encoder(&device);
        let target = buffer.on(&on).unwrap().buffer().unwrap().clone();
        own.copy_buffer_to_buffer(&source, 0, &target, 0, KIB);
        device.queue().submit([own.finish()]);
        let refused = scope.submit().unwrap_err();
        let call =
            "submit a scope that lent buffers and not its encoder: `submit_with` takes yours";
        assert_eq!((refused.why, refused.call), (Why::NotSubmitted, call));
    }
}

#[test]
fn h1a_with_a_prologue_zeroing_comes_first() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, buffer) = unzeroed(&device, &pool);
        let (on, source) = (scope.stream(), source(&device, 7));
        let mut own = encoder(&device);
        let target = buffer.on(&on).unwrap().buffer().unwrap().clone();
        own.copy_buffer_to_buffer(&source, 0, &target, 0, 512);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        let expected: Vec<u8> = [[7; 512], [0; 512]].concat();
        assert_eq!(shown(&device, &buffer), expected);
        assert!(device.faults().is_empty());
    }
}

#[test]
fn h1b_a_buffer_of_the_queues_stream_is_not_lent_to_an_encoder() {
    for device in devices() {
        let pool = uncleared(&device);
        let queue = of_the_queue(&device);
        let buffer = pool.allocate(KIB).unwrap();
        let view = buffer.on(&queue).unwrap();
        let call = "a buffer of the queue's stream in an encoder: use it on a scope";
        for refused in [view.buffer().unwrap_err(), view.binding().unwrap_err()] {
            assert_eq!((refused.why, refused.call), (Why::Unsupported, call));
        }
        view.write(0, &[7; 1024]).unwrap();
        drop(view);
        assert_eq!(shown(&device, &buffer), [7; 1024]);
    }
}

#[test]
fn h1b_a_buffer_of_a_prologue_serves_no_other_scope_before_the_submission() {
    for device in devices() {
        let pool = uncleared(&device);
        let scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let mut own = encoder(&device);
        own.clear_buffer(buffer.on(&on).unwrap().buffer().unwrap(), 0, None);
        drop(buffer);
        let prologue = scope.prologue(&mut own).unwrap();
        let other = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().misses, 2, "another block");
        other.on(&of_the_queue(&device)).unwrap().write(0, &[7; 1024]).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        assert_eq!(shown(&device, &other), [7; 1024]);
        // The submission is known by now, and the first block serves again.
        device.device().poll(PollType::Poll).unwrap();
        let again = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().hits, 1);
        drop(again);
    }
}

#[test]
fn a_program_can_tell_that_it_has_submitted() {
    for device in devices() {
        let pool = uncleared(&device);
        let scope = device.scope();
        let on = scope.stream();
        let mark = device.clock().mark(&on);
        drop(pool.allocate_on(&on, KIB).unwrap());
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.submitted(&device.scope().stream()); // of another scope: nothing happens
        assert!(!device.clock().is_submitted(mark));
        drop(pool.allocate(KIB).unwrap());
        assert_eq!(pool.stats().misses, 2);
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        device.submitted(&on);
        assert!(device.clock().is_submitted(mark), "at once, without a poll");
        let both = [pool.allocate(KIB).unwrap(), pool.allocate(KIB).unwrap()];
        assert_eq!(pool.stats().hits, 2);
        drop(both);
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(device.faults().is_empty());
    }
}

#[test]
fn uploads_and_read_backs_go_with_the_programs_commands() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        for frame in 0..20_u8 {
            let mut scope = device.scope();
            let on = scope.stream();
            let (a, b) = (pool.allocate_on(&on, KIB).unwrap(), pool.allocate_on(&on, KIB).unwrap());
            let (a, b) = (a.on(&on).unwrap(), b.on(&on).unwrap());
            scope.upload(&uploads, &a, 0, &[frame; 1024]).unwrap();
            let mut own = encoder(&device);
            own.copy_buffer_to_buffer(a.buffer().unwrap(), 0, b.buffer().unwrap(), 512, 512);
            let back = scope.read_back_in(&mut own, &backs, &b, 0, KIB).unwrap();
            let prologue = scope.prologue(&mut own).unwrap();
            device.queue().submit(prologue.into_iter().chain([own.finish()]));
            let expected: Vec<u8> = [[0; 512], [frame; 512]].concat();
            assert!(back.wait(|shown| shown == expected).unwrap(), "frame {frame}");
        }
        let staging = 4 * KIB..=8 * KIB;
        assert!(staging.contains(&uploads.reserved_bytes()), "it serves again: {uploads:?}");
        assert_eq!(backs.reserved_bytes(), 2 * KIB);
        assert!(pool.stats().misses <= 4, "{}", pool.stats());
        assert!(device.faults().is_empty());
    }
}

#[test]
fn a_prologue_that_is_left_out_is_told() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, _buffer) = unzeroed(&device, &pool);
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit([own.finish()]);
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        let faults = device.faults();
        let call = "a prologue that was left out, refused, or submitted too late";
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!((faults[0].why, faults[0].call), (Why::NotSubmitted, call));
        assert!(device.faults().is_empty(), "told once");
        drop(prologue);
    }
}

#[test]
fn each_fault_is_counted_and_told_once() {
    for device in devices() {
        let told = Arc::new(AtomicU64::new(0));
        let counted = told.clone();
        device.on_fault(move |fault| {
            assert_eq!(fault.why, Why::NotSubmitted);
            counted.fetch_add(1, Relaxed);
        });
        for frame in 1..=70_u64 {
            let pool = BucketPool::new(device.clone());
            let (scope, _buffer) = unzeroed(&device, &pool);
            let mut own = encoder(&device);
            drop(scope.prologue(&mut own).unwrap());
            device.queue().submit([own.finish()]);
            device.device().poll(PollType::wait_indefinitely()).unwrap();
            assert_eq!((device.fault_count(), told.load(Relaxed)), (frame, frame));
        }
        assert_eq!((device.faults().len(), device.fault_count()), (64, 70));
    }
}

#[test]
fn a_prologue_that_is_submitted_too_late_is_told() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, _buffer) = unzeroed(&device, &pool);
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit([own.finish()]);
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        let refused = device.device().push_error_scope(wgpu::ErrorFilter::Validation);
        device.queue().submit(prologue); // the receipt is mapped by now
        drop(refused.pop());
        assert_eq!(device.faults().len(), 1);
    }
}

#[test]
fn a_prologue_behind_its_commands_in_one_submit_is_told() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, _buffer) = unzeroed(&device, &pool);
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit([own.finish(), prologue.unwrap()]);
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert_eq!(device.faults().len(), 1);
    }
}

#[test]
fn h1a_commands_that_use_a_binding_are_seen_behind_a_scopes_own_copies() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mut scope, buffer) = unzeroed(&device, &pool);
        let on = scope.stream();
        let backs = device.read_backs(MIB);
        let view = buffer.on(&on).unwrap();
        view.binding().unwrap(); // into the program's own bind group and encoder
        let refused = scope.read_back(&backs, &view, 0, KIB).unwrap_err();
        assert_eq!(refused.why, Why::Unsupported, "it would run ahead of them");
        drop(view);
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
    }
}

#[test]
fn what_an_abandoned_frame_would_have_zeroed_is_zeroed() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, buffer) = unzeroed(&device, &pool);
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        drop((prologue, own));
        assert_eq!(shown(&device, &buffer), [0; 1024], "another's data");
        drop(buffer);
        let again = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().misses, 1, "its block serves again");
        assert!(device.faults().is_empty());
        drop(again);
    }
}

#[test]
fn staging_memory_of_an_abandoned_frame_comes_back() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let target = source(&device, 0);
        for _ in 0..20 {
            let mut scope = device.scope();
            scope.upload(&uploads, &Unpooled(&target), 0, &[1; 1024]).unwrap();
            let mut own = encoder(&device);
            let back = scope.read_back_in(&mut own, &backs, &Unpooled(&target), 0, 64).unwrap();
            let prologue = scope.prologue(&mut own).unwrap();
            drop((prologue, own));
            assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
        }
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(uploads.reserved_bytes() <= 2 * KIB, "{uploads:?}");
        assert_eq!(backs.reserved_bytes(), 0, "the program's encoder might have been submitted");
    }
}

#[test]
fn a_scope_with_its_own_commands_has_no_prologue() {
    for device in devices() {
        let target = source(&device, 0);
        let mut scope = device.scope();
        scope.encoder().clear_buffer(&target, 0, None);
        let refused = scope.prologue(&mut encoder(&device)).unwrap_err();
        let call = "a prologue of a scope that has its own commands: submit it";
        assert_eq!((refused.why, refused.call), (Why::Unsupported, call));
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_scope_that_is_dropped_while_its_buffers_may_be_in_an_encoder_is_told() {
    for device in devices() {
        let pool = uncleared(&device);
        let scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let mut own = encoder(&device);
        own.clear_buffer(buffer.on(&on).unwrap().buffer().unwrap(), 0, None);
        drop(scope); // the program's commands are not submitted
        let faults = device.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].why, Why::NotSubmitted);
        drop(device.scope());
        assert!(device.faults().is_empty(), "nothing was lent");
    }
}

#[test]
fn views_are_used_on_their_own_stream() {
    for device in devices() {
        let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let (mut one, mut two) = (device.scope(), device.scope());
        let (on_one, target) = (one.stream(), source(&device, 0));
        let buffer = pool.allocate_on(&on_one, KIB).unwrap();
        let view = buffer.on(&on_one).unwrap();
        let own = Unpooled(&target);
        let refused = [
            two.upload(&uploads, &view, 0, &[1; 4]).unwrap_err(),
            two.read_back(&backs, &view, 0, 4).unwrap_err(),
            two.copy((&own, 0), (&view, 0), 4).unwrap_err(),
            two.copy((&view, 0), (&own, 0), 4).unwrap_err(),
        ];
        for refused in refused {
            let call = "a view of another stream: use the buffer on this scope";
            assert_eq!((refused.why, refused.call), (Why::Foreign, call));
        }
        assert!(view.write(0, &[1; 4]).is_err(), "the queue is another stream too");
        one.upload(&uploads, &view, 0, &[1; 4]).unwrap();
        one.copy((&own, 0), (&view, 8), 4).unwrap();
    }
}

#[test]
fn h2_a_device_whose_loss_another_library_learns_of_is_marked() {
    for device in devices() {
        let (raw, queue) = (device.device().clone(), device.queue().clone());
        let second = WgpuAllocator::without_lost_callback(raw.clone(), queue.clone());
        assert!(device.faults().is_empty(), "the callback of the first is in place");
        let pool = BucketPool::new(second.clone());
        drop(pool.allocate(KIB).unwrap());
        second.mark_lost();
        assert_eq!(pool.allocate(KIB).unwrap_err().why(), Why::Lost);
        raw.set_device_lost_callback(|_, _| {});
        let faults = device.faults();
        let call = "the device-lost callback was replaced: call `mark_lost` from the new one";
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].call, call);
    }
}

#[test]
fn zeroing_of_a_scope_that_is_dropped_after_a_step_is_done() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mut scope, buffer) = unzeroed(&device, &pool);
        scope.encoder().clear_buffer(&source(&device, 1), 0, None);
        scope.end_step();
        drop(scope);
        assert_eq!(shown(&device, &buffer), [0; 1024], "another's data");
    }
}

#[test]
fn a_step_without_commands_of_the_scope_is_none() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mut scope, buffer) = unzeroed(&device, &pool);
        scope.end_step();
        let on = scope.stream();
        let mut own = encoder(&device);
        own.clear_buffer(&scope.lend(&buffer).unwrap(), 0, Some(4));
        drop(buffer);
        scope.end_step(); // the program's commands may use the block
        let another = pool.allocate_on(&on, KIB).unwrap();
        assert_eq!(pool.stats().misses, 2);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        drop(another);
    }
}

#[test]
fn zeroing_of_later_steps_does_not_depend_on_refused_commands() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mut scope, first) = unzeroed(&device, &pool);
        let destroyed = source(&device, 1);
        scope.encoder().clear_buffer(&destroyed, 0, None);
        drop(first);
        scope.end_step();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let _ = scope.encoder();
        destroyed.destroy();
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
        assert_eq!(shown(&device, &buffer), [0; 1024], "another's data");
    }
}

#[test]
fn read_backs_by_the_programs_commands_show_no_old_bytes() {
    for device in devices() {
        let (old, new) = (source(&device, 0x5E), source(&device, 7));
        let backs = device.read_backs(MIB);
        let read = |from: &Buffer| {
            let mut scope = device.scope();
            let back = scope.read_back(&backs, &Unpooled(from), 0, KIB).unwrap();
            scope.submit().unwrap();
            back.wait(<[u8]>::to_vec).unwrap()
        };
        assert_eq!(read(&old), [0x5E; 1024]); // what a chunk had
        // The scope is submitted instead of its prologue.
        let (mut scope, mut own) = (device.scope(), encoder(&device));
        let back = scope.read_back_in(&mut own, &backs, &Unpooled(&new), 0, KIB).unwrap();
        drop(own);
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
        // The encoder of the copy is dropped, and another one is submitted.
        let (mut scope, mut own) = (device.scope(), encoder(&device));
        let lost = scope.read_back_in(&mut own, &backs, &Unpooled(&new), 0, KIB).unwrap();
        drop(own);
        let mut own = encoder(&device);
        let back = scope.read_back_in(&mut own, &backs, &Unpooled(&new), 0, KIB).unwrap();
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        assert!(back.wait(|shown| shown == [7; 1024]).unwrap());
        assert_eq!(lost.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
        // A flush in the middle leaves them alone.
        let (mut scope, mut own) = (device.scope(), encoder(&device));
        let back = scope.read_back_in(&mut own, &backs, &Unpooled(&old), 0, KIB).unwrap();
        scope.flush().unwrap();
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        assert!(back.wait(|shown| shown == [0x5E; 1024]).unwrap());
    }
}

/// The uploads of a prologue run ahead of all commands of the program, also of those that used the
/// block before.
#[test]
fn a_block_that_the_programs_encoder_has_used_is_uploaded_to_for_no_other_owner() {
    let ways = devices().flat_map(|device| [(device.clone(), false), (device, true)]);
    for (device, steps) in ways {
        let (pool, uploads) = (uncleared(&device), device.uploads(4 * KIB, MIB));
        let (mut scope, mut own) = (device.scope(), encoder(&device));
        let on = scope.stream();
        let [other, targets @ ..] = [(); 3].map(|()| source(&device, 0));
        for (target, byte) in targets.iter().zip([1, 2]) {
            let buffer = scope.take(&pool, KIB).unwrap();
            scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[byte; 1024]).unwrap();
            own.copy_buffer_to_buffer(&scope.lend(&buffer).unwrap(), 0, target, 0, KIB);
            drop(buffer);
            if steps {
                // A copy of the scope, which is no step of the program's commands.
                scope.upload(&uploads, &Unpooled(&other), 0, &[9; 64]).unwrap();
                scope.end_step();
                scope.flush().unwrap();
            }
        }
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        assert_eq!(targets.map(|target| bytes_of(&device, &target)[0]), [1, 2]);
    }
}

/// The program's own commands are submitted later than what is flushed.
#[test]
fn a_flush_sets_no_block_free_that_the_programs_encoder_uses() {
    for device in devices() {
        let (pool, with) = (BucketPool::new(device.clone()), source(&device, 0xAB));
        let (mut scope, mut own) = (device.scope(), encoder(&device));
        let first = scope.take(&pool, KIB).unwrap();
        let of_first = scope.lend(&first).unwrap();
        own.copy_buffer_to_buffer(&with, 0, &of_first, 0, KIB);
        drop(first);
        scope.flush().unwrap();
        let other = device.scope();
        let of_other = other.take(&pool, KIB).unwrap();
        assert!(other.lend(&of_other).unwrap() != of_first, "it serves another scope");
        let (second, target) = (scope.take(&pool, KIB).unwrap(), source(&device, 7));
        own.copy_buffer_to_buffer(&scope.lend(&second).unwrap(), 0, &target, 0, KIB);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        assert_eq!(bytes_of(&device, &target), [0; 1024], "it shows what its last owner left");
        drop((of_other, other.prologue(&mut encoder(&device))));
    }
}

#[test]
fn a_prologue_that_outlives_its_commands_keeps_the_blocks() {
    for device in devices() {
        let (pool, uploads) = (uncleared(&device), device.uploads(KIB, KIB));
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[7; 1024]).unwrap();
        drop(buffer);
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        drop(own);
        let other = pool.allocate(KIB).unwrap();
        other.on(&of_the_queue(&device)).unwrap().write(0, &[9; 1024]).unwrap();
        device.queue().submit(prologue); // late, and without its commands
        assert_eq!(shown(&device, &other), [9; 1024]);
    }
}

#[test]
fn what_a_prologue_uploaded_stays_when_the_commands_are_dropped() {
    for device in devices() {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(KIB, KIB));
        let (mut scope, buffer) = unzeroed(&device, &pool);
        let on = scope.stream();
        scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[7; 1024]).unwrap();
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue);
        drop(own);
        assert_eq!(shown(&device, &buffer), [7; 1024]);
        // Its receipt is not used again, so that the next prologue that is left out is told.
        drop(buffer);
        let (scope, _buffer) = {
            let scope = device.scope();
            let buffer = pool.allocate_on(&scope.stream(), KIB).unwrap();
            (scope, buffer)
        };
        let mut own = encoder(&device);
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit([own.finish()]);
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert_eq!(device.faults().len(), 1);
        drop(prologue);
    }
}

#[test]
fn a_stream_of_another_device_closes_no_scope() {
    let (one, two) = (present::noop(), present::noop());
    let (scope, other) = (one.scope(), two.scope());
    let mark = one.clock().mark(&scope.stream());
    let mut own = encoder(&one);
    let prologue = scope.prologue(&mut own).unwrap();
    one.submitted(&other.stream());
    assert!(!one.clock().is_submitted(mark));
    drop((prologue, own));
}

#[test]
fn a_program_that_uploads_to_what_it_has_bound_is_not_refused() {
    for device in devices() {
        let (pool, uploads) = (uncleared(&device), device.uploads(4 * KIB, MIB));
        let mut scope = device.scope();
        scope.upload_eagerly();
        let _ = scope.encoder(); // there is no other
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, 16 * KIB).unwrap();
        let view = buffer.on(&on).unwrap();
        view.buffer().unwrap(); // for commands of a later scope
        for part in 0..4 {
            scope.upload(&uploads, &view, part * 4 * KIB, &[1; 4096]).unwrap();
        }
        scope.flush().unwrap();
        scope.submit().unwrap();
        assert!(device.faults().is_empty());
    }
}

#[test]
fn a_loss_that_the_pool_was_not_told_of_is_no_crash() {
    for device in devices() {
        let (raw, queue) = (device.device().clone(), device.queue().clone());
        let device = WgpuAllocator::without_lost_callback(raw.clone(), queue);
        let (uploads, target) = (device.uploads(MIB, MIB), source(&device, 0));
        let mut scope = device.scope();
        scope.upload(&uploads, &Unpooled(&target), 0, &[1; 64]).unwrap();
        raw.destroy();
        let _ = raw.poll(PollType::wait_indefinitely());
        let refused = scope.upload(&uploads, &Unpooled(&target), 0, &[1; 64]);
        assert_eq!(refused.unwrap_err().why, Why::Lost);
        assert_eq!(scope.submit().unwrap_err().why, Why::Lost);
    }
}
