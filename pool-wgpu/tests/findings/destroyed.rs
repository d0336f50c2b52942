//! Finding 9: a program destroys its clone, as wgpu invites it to, and each later frame would be refused.

use crate::present::devices;
use crate::{encoder, own, shown};
use pool_core::{BucketPool, KIB, MIB};
use std::sync::Arc;

#[test]
fn a_block_that_was_destroyed_costs_one_frame() {
    for device in devices() {
        // wgpu's own handler would panic.
        device.device().on_uncaptured_error(Arc::new(drop));
        for with_prologue in [false, true] {
            let pool = BucketPool::new(device.clone());
            let uploads = device.uploads(64 * KIB, MIB);
            let scope = device.scope();
            let buffer = scope.take(&pool, KIB).unwrap();
            let lent = scope.lend(&buffer).unwrap();
            let mut commands = encoder(&device);
            commands.clear_buffer(&lent, 0, None);
            scope.submit_with(commands).unwrap();
            drop(buffer);
            lent.destroy();
            let mut right = 0;
            for frame in 1..=3_u8 {
                let mut scope = device.scope();
                let on = scope.stream();
                let buffers = [scope.take(&pool, KIB), scope.take(&pool, 64 * KIB)];
                let [_small, large] = buffers.map(Result::unwrap);
                scope.upload(&uploads, &large.on(&on).unwrap(), 0, &[frame; 1024]).unwrap();
                let target = own(&device, KIB);
                let mut commands = encoder(&device);
                let lent = scope.lend(&large).unwrap();
                commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
                if with_prologue {
                    let prologue = scope.prologue(&mut commands).unwrap();
                    device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                } else {
                    assert_eq!(scope.submit_with(commands).is_err(), frame == 1);
                }
                right += u32::from(shown(&device, &target) == Some(frame));
                let _ = device.faults(); // which looks at the receipts
            }
            // wgpu refuses what zeroes it with all of the frame.
            assert_eq!(right, 2, "prologue: {with_prologue}");
        }
    }
}
