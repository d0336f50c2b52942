//! Bytes of the CPU on their way into a frame of the program.

use crate::present::devices;
use crate::{encoder, own, shown};
use pool_core::{BucketPool, KIB, MIB, Why};

/// Finding 8: two draws with one uniform. `StagingBelt::write_buffer` is right, so this must be.
#[test]
fn each_draw_sees_what_was_uploaded_before_it() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        for frame in 0..3 {
            for with_prologue in [false, true] {
                let mut scope = device.scope();
                let on = scope.stream();
                let buffer = scope.take(&pool, KIB).unwrap();
                let raw = scope.lend(&buffer).unwrap();
                let targets = [own(&device, KIB), own(&device, KIB), own(&device, KIB)];
                let mut commands = encoder(&device);
                let view = buffer.on(&on).unwrap();
                scope.upload(&uploads, &view, 0, &[1; 1024]).unwrap();
                commands.copy_buffer_to_buffer(&raw, 0, &targets[0], 0, KIB);
                let again = scope.upload(&uploads, &view, 512, &[2; 512]).unwrap_err();
                assert_eq!(again.why, Why::Unsupported); // all draws would see it
                for (at, target) in targets.iter().enumerate().skip(1) {
                    let byte = u8::try_from(at + 1).unwrap();
                    scope.upload_in(&mut commands, &uploads, &view, 0, &[byte; 1024]).unwrap();
                    commands.copy_buffer_to_buffer(&raw, 0, target, 0, KIB);
                }
                drop(view);
                if with_prologue {
                    let prologue = scope.prologue(&mut commands).unwrap();
                    device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                } else {
                    scope.submit_with(commands).unwrap();
                }
                let shown = targets.map(|target| shown(&device, &target));
                assert_eq!(shown, [Some(1), Some(2), Some(3)], "frame {frame}");
            }
        }
        assert_eq!(device.faults(), []);
        assert!(uploads.reserved_bytes() <= 3 * 64 * KIB, "{uploads:?}");
    }
}

/// Ranges of uploads overlap in any order.
#[test]
fn a_range_is_found_under_a_larger_one() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        for ranges in [[(20, 8), (0, 100), (200, 4)], [(0, 12), (20, 8), (4, 96)]] {
            let mut scope = device.scope();
            let on = scope.stream();
            let buffer = scope.take(&pool, KIB).unwrap();
            let view = buffer.on(&on).unwrap();
            for (at, len) in ranges {
                scope.upload(&uploads, &view, at, &[1; 100][..len]).unwrap();
            }
            view.buffer().unwrap();
            let again = scope.upload(&uploads, &view, 48, &[2; 8]).unwrap_err();
            assert_eq!(again.why, Why::Unsupported, "{ranges:?}");
            scope.upload(&uploads, &view, 512, &[2; 8]).unwrap();
            drop(view);
            scope.submit_with(encoder(&device)).unwrap();
        }
    }
}

/// Before the program has the buffer, no draw can have seen the first upload.
#[test]
fn bytes_are_uploaded_again_before_the_buffer_is_lent() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        let mut scope = device.scope();
        let on = scope.stream();
        let buffers = [scope.take(&pool, KIB).unwrap(), scope.take(&pool, KIB).unwrap()];
        let _other = scope.lend(&buffers[1]).unwrap();
        let view = buffers[0].on(&on).unwrap();
        scope.upload(&uploads, &view, 0, &[1; 1024]).unwrap();
        scope.upload(&uploads, &view, 0, &[2; 1024]).unwrap();
        drop(view);
        let raw = scope.lend(&buffers[0]).unwrap();
        let target = own(&device, KIB);
        let mut commands = encoder(&device);
        commands.copy_buffer_to_buffer(&raw, 0, &target, 0, KIB);
        scope.submit_with(commands).unwrap();
        assert_eq!(shown(&device, &target), Some(2));
    }
}

/// What the program's commands read is not written for others before these are done or dropped.
#[test]
fn staging_memory_of_dropped_frames_is_not_used_again() {
    for device in devices() {
        let uploads = device.uploads(64 * KIB, MIB);
        let target = own(&device, KIB);
        let mut commands = encoder(&device);
        for ends in 0..2 {
            let mut scope = device.scope();
            let place = pool_wgpu::Unpooled(&target);
            scope.upload_in(&mut commands, &uploads, &place, 0, &[1; 1024]).unwrap();
            if ends == 0 {
                drop(scope);
            } else {
                scope.flush().unwrap();
                assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
            }
        }
        assert_eq!(uploads.reserved_bytes(), 0, "both chunks went to wgpu");
        device.queue().submit([commands.finish()]);
        assert_eq!(shown(&device, &target), Some(1));
    }
}

/// Finding 21: a copy is ahead of the program's commands, as uploads are.
#[test]
fn a_copy_goes_into_a_prologue() {
    for device in devices() {
        let (from, to, target) = (own(&device, KIB), own(&device, KIB), own(&device, KIB));
        device.queue().write_buffer(&from, 0, &[3; 1024]);
        let mut scope = device.scope();
        let (a, b) = (pool_wgpu::Unpooled(&from), pool_wgpu::Unpooled(&to));
        scope.copy((&a, 0), (&b, 0), KIB).unwrap();
        let mut commands = encoder(&device);
        commands.copy_buffer_to_buffer(&to, 0, &target, 0, KIB);
        let prologue = scope.prologue(&mut commands).unwrap();
        device.queue().submit(prologue.into_iter().chain([commands.finish()]));
        assert_eq!(shown(&device, &target), Some(3));
    }
}

/// What a frame writes first needs no zeroes; everything else has them.
#[test]
fn a_buffer_that_is_taken_to_be_filled_is_not_zeroed() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        for to_fill in [true, false] {
            let mut scope = device.scope();
            let on = scope.stream();
            let buffer = scope.take(&pool, KIB).unwrap();
            scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[7; 1024]).unwrap();
            scope.submit().unwrap();
            drop(buffer);
            let scope = device.scope();
            let buffer = match to_fill {
                true => scope.take_to_fill(&pool, KIB).unwrap(),
                false => scope.take(&pool, KIB).unwrap(),
            };
            let (lent, target) = (scope.lend(&buffer).unwrap(), own(&device, KIB));
            let mut commands = encoder(&device);
            commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
            scope.submit_with(commands).unwrap();
            assert_eq!(shown(&device, &target), Some(if to_fill { 7 } else { 0 }));
        }
        assert_eq!(pool.stats().misses, 1);
    }
}

/// Finding 22: a read-back of much costs a prologue no clearing of as much.
#[test]
fn many_read_backs_of_a_frame_come_each() {
    for device in devices() {
        let backs = device.read_backs(MIB);
        let source = own(&device, KIB);
        device.queue().write_buffer(&source, 0, &[9; 1024]);
        for count in [1, 3, 40] {
            let mut scope = device.scope();
            let mut commands = encoder(&device);
            let place = pool_wgpu::Unpooled(&source);
            let shown: Vec<_> = (0..count)
                .map(|at| scope.read_back_in(&mut commands, &backs, &place, at * 4, 7).unwrap())
                .collect();
            let prologue = scope.prologue(&mut commands).unwrap();
            device.queue().submit(prologue.into_iter().chain([commands.finish()]));
            for back in shown {
                assert!(back.wait(|bytes| bytes == [9; 7]).unwrap());
            }
        }
    }
}
