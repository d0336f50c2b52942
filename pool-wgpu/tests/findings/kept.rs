//! Buffers that a program keeps for longer than a frame, and frames that end otherwise than expected.

use crate::groups::layout_of_storage;
use crate::present::{devices, uncleared};
use crate::{encoder, own, shown};
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::{ToRead, WgpuAllocator};
use std::thread;

/// Finding 6: it worked in the first frame, and failed under load.
#[test]
fn a_scope_whose_buffers_are_in_another_encoder_is_not_submitted_without_it() {
    for device in devices() {
        for pool in [BucketPool::new(device.clone()), uncleared(&device)] {
            let scope = device.scope();
            let buffer = scope.take(&pool, KIB).unwrap(); // fresh, so that nothing is zeroed
            let lent = scope.lend(&buffer).unwrap();
            let mut own = encoder(&device);
            own.clear_buffer(&lent, 0, None);
            let refused = scope.submit().unwrap_err();
            assert_eq!(refused.why, Why::NotSubmitted);

            let scope = device.scope();
            own.clear_buffer(&scope.lend(&buffer).unwrap(), 0, None);
            scope.submit_with(own).unwrap();
            assert_eq!(device.faults(), []);
        }
    }
}

/// Lent, and bound.
#[test]
fn a_mesh_that_open_frames_read_serves_no_other_before_they_are_submitted() {
    for device in devices() {
        let layout = layout_of_storage(&device);
        for is_bound in [false, true] {
            let pool = uncleared(&device);
            // Scopes that were open before it was made: for later ones a drop waits in any case.
            let scopes = [(); 3].map(|()| device.scope());
            let maker = device.scope();
            let mesh = maker.take(&pool, KIB).unwrap();
            maker.submit_with(encoder(&device)).unwrap();
            let [one, other, late] = scopes.map(|scope| {
                match is_bound {
                    true => drop(scope.bind_group(&layout, &[(0, &ToRead(&mesh))]).unwrap()),
                    false => drop(scope.lend_to_read(&mesh).unwrap()),
                }
                scope
            });
            assert_eq!(late.submit().unwrap_err().why, Why::NotSubmitted, "it has lent it");
            drop(mesh);
            let mut kept = Vec::new();
            let mut take = || {
                let (scope, misses) = (device.scope(), pool.stats().misses);
                kept.push(scope.take(&pool, KIB).unwrap());
                scope.submit_with(encoder(&device)).unwrap();
                pool.stats().misses == misses
            };
            assert!(!take(), "bound: {is_bound}");
            one.submit_with(encoder(&device)).unwrap();
            assert!(!take(), "bound: {is_bound}, by the other");
            other.submit_with(encoder(&device)).unwrap();
            assert!(take(), "bound: {is_bound}");
        }
    }
}

/// A mesh of one byte, written in a frame that has ended, and the buffer that the program keeps of it.
fn mesh(
    device: &WgpuAllocator,
    pool: &BucketPool<WgpuAllocator>,
) -> (pool_core::PooledBuffer<WgpuAllocator>, wgpu::Buffer) {
    let uploads = device.uploads(64 * KIB, MIB);
    let mut scope = device.scope();
    let mesh = scope.take(pool, KIB).unwrap();
    let raw = scope.lend(&mesh).unwrap();
    scope.upload(&uploads, &mesh.on(&scope.stream()).unwrap(), 512, &[1; 512]).unwrap();
    scope.upload(&uploads, &mesh.on(&scope.stream()).unwrap(), 0, &[1; 512]).unwrap();
    scope.submit_with(encoder(device)).unwrap();
    (mesh, raw)
}

/// Finding 7: a mesh that is made once, recorded in a later frame, and dropped while that is recorded.
#[test]
fn a_buffer_that_is_dropped_in_a_later_frame_serves_no_open_frame() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        for with_prologue in [false, true] {
            let (mesh, raw) = mesh(&device, &pool);
            for _ in 0..3 {
                // Frames that use it without telling, or tell.
                let scope = device.scope();
                let _ = scope.lend_to_read(&mesh).unwrap();
                scope.submit_with(encoder(&device)).unwrap();
            }
            let (mut scope, other) = (device.scope(), device.scope());
            let target = own(&device, KIB);
            let mut commands = encoder(&device);
            commands.copy_buffer_to_buffer(&raw, 0, &target, 0, KIB);
            drop((mesh, raw));
            let on = scope.stream();
            let next = scope.take(&pool, KIB).unwrap();
            scope.upload(&uploads, &next.on(&on).unwrap(), 0, &[2; 1024]).unwrap();
            let of_other = other.take(&pool, KIB).unwrap(); // zeroed by a scope that is submitted first
            drop(of_other);
            other.submit_with(encoder(&device)).unwrap();
            if with_prologue {
                let prologue = scope.prologue(&mut commands).unwrap();
                device.queue().submit(prologue.into_iter().chain([commands.finish()]));
            } else {
                scope.submit_with(commands).unwrap();
            }
            assert_eq!(shown(&device, &target), Some(1), "with a prologue: {with_prologue}");
            drop(next);
        }
    }
}

/// A temporary is not kept: its block serves the same frame, and frames beside it do not matter.
#[test]
fn a_temporary_waits_for_its_own_scope_alone() {
    for device in devices() {
        let pool = uncleared(&device);
        let long = device.scope();
        for _ in 0..4 {
            let mut scope = device.scope();
            let buffer = scope.take(&pool, KIB).unwrap();
            let lent = scope.lend(&buffer).unwrap();
            scope.encoder().clear_buffer(&lent, 0, None);
            drop(buffer);
            scope.submit().unwrap();
        }
        assert_eq!(pool.stats().misses, 1, "an open scope holds no block of others");
        drop(long);
    }
}

/// Finding 16: two views, two windows, encoders in parallel.
#[test]
fn a_mesh_is_read_by_any_number_of_open_frames() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mesh, _) = mesh(&device, &pool);
        let target = own(&device, KIB);
        let frame = || {
            let scope = device.scope();
            let read = scope.lend_to_read(&mesh).unwrap();
            let mut commands = encoder(&device);
            commands.copy_buffer_to_buffer(&read, 0, &target, 0, KIB);
            scope.submit_with(commands).unwrap();
        };
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| (0..50).for_each(|_| frame()));
            }
        });
        assert_eq!(shown(&device, &target), Some(1));
        let (first, second) = (device.scope(), device.scope());
        let lent = [first.lend_to_read(&mesh).unwrap(), second.lend_to_read(&mesh).unwrap()];
        assert_eq!(device.scope().lend(&mesh).unwrap_err().why, Why::NotSubmitted);
        drop(mesh);
        let misses = pool.stats().misses;
        drop(first);
        drop(device.scope().take(&pool, KIB).unwrap());
        assert_eq!(pool.stats().misses, misses + 1, "the second frame may read it still");
        drop((second, lent));
        pool.clear().unwrap();
        assert_eq!(pool.reserved_bytes(), 0);
    }
}

/// Finding 10: a block that leaves its pool is the program's, also where its scope was to zero it.
#[test]
fn a_block_that_leaves_the_pool_is_not_zeroed_later() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        drop(mesh(&device, &pool));
        let scope = device.scope();
        let buffer = scope.take(&pool, KIB).unwrap();
        assert_eq!(pool.stats().hits, 1);
        let (block, _) = buffer.detach().into_raw().unwrap();
        let raw = block.into_buffer();
        assert_eq!(shown(&device, &raw), Some(0));
        device.queue().write_buffer(&raw, 0, &[5; 1024]);
        scope.submit().unwrap();
        assert_eq!(shown(&device, &raw), Some(5));
    }
}

/// What the queue writes runs ahead of all prologues, so it is zeroed before.
#[test]
fn the_queue_writes_to_what_is_taken_for_it() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        drop(mesh(&device, &pool));
        let scope = device.scope();
        let buffer = pool.allocate(KIB).unwrap();
        let lent = scope.lend(&buffer).unwrap();
        device.queue().write_buffer(&lent, 0, &[5; 512]);
        let target = own(&device, KIB);
        let mut commands = encoder(&device);
        commands.copy_buffer_to_buffer(&lent, 0, &target, 0, 512);
        commands.copy_buffer_to_buffer(&lent, 0, &target, 512, 512);
        scope.submit_with(commands).unwrap();
        assert_eq!((pool.stats().hits, shown(&device, &target)), (1, Some(5)));
    }
}

/// What only `upload_in` or `read_back_in` recorded is in the program's encoder too.
#[test]
fn a_flush_frees_nothing_that_the_programs_encoder_has() {
    for device in devices() {
        for pool in [BucketPool::new(device.clone()), uncleared(&device)] {
            let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
            let mut scope = device.scope();
            let on = scope.stream();
            let mut commands = encoder(&device);
            let buffer = scope.take(&pool, KIB).unwrap();
            let view = buffer.on(&on).unwrap();
            scope.upload_in(&mut commands, &uploads, &view, 0, &[1; 1024]).unwrap();
            let back = scope.read_back_in(&mut commands, &backs, &view, 0, KIB).unwrap();
            drop(view);
            drop(buffer);
            scope.end_step();
            scope.flush().unwrap();
            let mut other = device.scope();
            let next = other.take(&pool, KIB).unwrap();
            other.upload(&uploads, &next.on(&other.stream()).unwrap(), 0, &[2; 1024]).unwrap();
            other.submit().unwrap();
            let same = scope.take(&pool, KIB).unwrap();
            scope.upload(&uploads, &same.on(&on).unwrap(), 0, &[3; 1024]).unwrap();
            scope.submit_with(commands).unwrap();
            assert!(back.wait(|bytes| bytes == [1; 1024]).unwrap());
            for (buffer, byte) in [(next, 2), (same, 3)] {
                let mut scope = device.scope();
                let on = scope.stream();
                let view = buffer.on(&on).unwrap();
                let back = scope.read_back(&backs, &view, 0, KIB).unwrap();
                scope.submit().unwrap();
                assert!(back.wait(|bytes| bytes == [byte; 1024]).unwrap(), "{byte}");
            }
        }
    }
}

/// A mesh that was dropped in the scope may be in the program's encoder after a flush.
#[test]
fn a_flush_frees_no_mesh() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (mesh, raw) = mesh(&device, &pool);
        let uploads = device.uploads(64 * KIB, MIB);
        let mut scope = device.scope();
        let (target, mut commands) = (own(&device, KIB), encoder(&device));
        commands.copy_buffer_to_buffer(&raw, 0, &target, 0, KIB);
        drop((mesh, raw));
        scope.flush().unwrap();
        let mut other = device.scope();
        let next = other.take(&pool, KIB).unwrap();
        other.upload(&uploads, &next.on(&other.stream()).unwrap(), 0, &[2; 1024]).unwrap();
        other.submit().unwrap();
        scope.submit_with(commands).unwrap();
        assert_eq!(shown(&device, &target), Some(1));
    }
}

/// The order of one encoder is none for two.
#[test]
fn a_scope_has_one_encoder() {
    for device in devices() {
        let mut scope = device.scope();
        let _ = scope.encoder();
        assert_eq!(scope.submit_with(encoder(&device)).unwrap_err().why, Why::Unsupported);
        let pool = BucketPool::new(device.clone());
        let (backs, target) = (device.read_backs(KIB), own(&device, KIB));
        let mut scope = device.scope();
        let buffer = scope.take(&pool, KIB).unwrap();
        let _lent = scope.lend(&buffer).unwrap();
        let on = scope.stream();
        let view = buffer.on(&on).unwrap();
        // They would run ahead of what the program's commands write.
        let early = scope.read_back(&backs, &view, 0, KIB).unwrap_err();
        assert_eq!(early.why, Why::Unsupported);
        let target = pool_wgpu::Unpooled(&target);
        assert_eq!(scope.copy((&view, 0), (&target, 0), KIB).unwrap_err().why, Why::Unsupported);
        drop(view);
        scope.submit_with(encoder(&device)).unwrap();
    }
}

/// A loader that is open for long holds nothing of the frames beside it.
#[test]
fn what_a_frame_drops_after_its_end_waits_for_no_older_scope() {
    for device in devices() {
        let pool = uncleared(&device);
        let loader = device.scope();
        for _ in 0..4 {
            let scope = device.scope();
            let buffer = scope.take(&pool, KIB).unwrap();
            let mut commands = encoder(&device);
            commands.clear_buffer(&scope.lend(&buffer).unwrap(), 0, None);
            scope.submit_with(commands).unwrap();
            drop(buffer);
        }
        assert_eq!(pool.stats().misses, 1);
        drop(loader);
    }
}

#[test]
fn encoders_run_in_the_order_that_they_are_given_in() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let (scope, target) = (device.scope(), own(&device, KIB));
        let buffer = scope.take(&pool, KIB).unwrap();
        let lent = scope.lend(&buffer).unwrap();
        let from = own(&device, KIB);
        device.queue().write_buffer(&from, 0, &[4; 1024]);
        let [mut first, mut second, mut last] = [(); 3].map(|()| encoder(&device));
        first.clear_buffer(&lent, 0, None);
        second.copy_buffer_to_buffer(&from, 0, &lent, 0, KIB);
        last.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
        scope.submit_all([first.finish(), second.finish()], last).unwrap();
        assert_eq!(shown(&device, &target), Some(4));
    }
}

/// What makes the encoders may take buffers: they are zeroed ahead of all of them.
#[test]
fn encoders_that_are_made_late_have_zeroed_buffers() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        drop(mesh(&device, &pool));
        let (scope, target) = (device.scope(), own(&device, KIB));
        let on = scope.stream();
        let mut held = Vec::new();
        let late = std::iter::once_with(|| {
            let buffer = pool.allocate_on(&on, KIB).unwrap();
            let mut commands = encoder(&device);
            let lent = buffer.on(&on).unwrap().buffer().unwrap().clone();
            commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
            held.push(buffer);
            commands.finish()
        });
        scope.submit_all(late, encoder(&device)).unwrap();
        assert_eq!((pool.stats().hits, shown(&device, &target)), (1, Some(0)));
    }
}
