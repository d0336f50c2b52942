//! Frames that wgpu refuses: what they were to upload, and what they destroyed.

use crate::present::{devices, vulkan};
use crate::{Pooled, encoder, filled, own, shown};
use pool_core::{BucketPool, KIB, MIB, Why, ZeroPolicy};
use pool_wgpu::{Scope, Unpooled, WgpuAllocator};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use wgpu::{
    CommandEncoder, Extent3d, TexelCopyBufferLayout, TextureDescriptor, TextureDimension,
    TextureFormat, TextureUsages,
};

/// Makes wgpu refuse the submission of these commands: one wrong draw.
fn spoil(device: &WgpuAllocator, commands: &mut CommandEncoder) {
    let destroyed = own(device, 64);
    commands.clear_buffer(&destroyed, 0, None);
    destroyed.destroy();
}

/// How a frame ends whose commands wgpu refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Submit,
    SubmitWith,
    Flush,
}

/// What is uploaded in a frame has nothing to do with its draws, as `Queue::write_buffer` has not.
#[test]
fn a_frame_that_wgpu_refuses_loses_no_upload_and_says_so() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        for ends in [Ends::Submit, Ends::SubmitWith, Ends::Flush] {
            for zeroed in [false, true] {
                let pool = BucketPool::new(device.clone());
                let uploads = device.uploads(64 * KIB, MIB);
                if zeroed {
                    drop(device.scope().take(&pool, KIB).unwrap());
                }
                drop(filled(&device, 0x5E)); // what a fresh buffer's memory may show
                let mut scope = device.scope();
                let on = scope.stream();
                let mesh = scope.take(&pool, KIB).unwrap();
                let (from, copied) = (filled(&device, 3), own(&device, KIB));
                let view = mesh.on(&on).unwrap();
                scope.upload(&uploads, &view, 0, &[7; 1024]).unwrap();
                scope.copy((&Unpooled(&from), 0), (&Unpooled(&copied), 0), KIB).unwrap();
                drop(view);
                let mut commands = encoder(&device);
                let refused = match ends {
                    Ends::Submit => {
                        spoil(&device, scope.encoder());
                        scope.submit().map(drop)
                    }
                    Ends::SubmitWith => {
                        spoil(&device, &mut commands);
                        scope.submit_with(commands).map(drop)
                    }
                    Ends::Flush => {
                        spoil(&device, scope.encoder());
                        let flushed = scope.flush().map(drop);
                        drop(scope);
                        flushed
                    }
                };
                let case = format!("{ends:?}, zeroed: {zeroed}");
                assert_eq!(refused.map_err(|error| error.why), Err(Why::NotSubmitted), "{case}");
                assert_eq!(seen(&device, &mesh), Some(7), "{case}");
                assert_eq!(shown(&device, &copied), Some(3), "{case}");
            }
        }
    }
}

/// Texels too, and what goes in between: with the commands, as `StagingBelt` has it.
#[test]
fn a_frame_that_wgpu_refuses_loses_no_texels() {
    let Some(device) = vulkan() else { return };
    let size = Extent3d { width: 16, height: 4, depth_or_array_layers: 1 };
    let texture = device.device().create_texture(&TextureDescriptor {
        label: None,
        size,
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format: TextureFormat::Rgba8Unorm,
        usage: TextureUsages::COPY_SRC | TextureUsages::COPY_DST,
        view_formats: &[],
    });
    let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
    let place = texture.as_image_copy();
    let layout = TexelCopyBufferLayout { bytes_per_row: Some(64), ..Default::default() };
    let (mut scope, mut commands) = (device.scope(), encoder(&device));
    scope.upload_texture(&uploads, place, &[9; 256], layout, size).unwrap();
    let between = own(&device, KIB);
    scope.upload_in(&mut commands, &uploads, &Unpooled(&between), 0, &[9; 1024]).unwrap();
    spoil(&device, &mut commands);
    assert_eq!(scope.submit_with(commands).unwrap_err().why, Why::NotSubmitted);
    let mut scope = device.scope();
    let back = scope.read_back_texture(&backs, place, size).unwrap();
    scope.submit().unwrap();
    assert!(back.wait(|texels| texels == [9; 256]).unwrap());
    assert_eq!(shown(&device, &between), Some(0));
    // The staging memory serves again.
    assert!(uploads.reserved_bytes() <= 2 * 64 * KIB, "{uploads:?}");
}

/// What a later frame sees of a buffer.
fn seen(device: &WgpuAllocator, buffer: &Pooled) -> Option<u8> {
    let scope = device.scope();
    let target = own(device, KIB);
    let mut commands = encoder(device);
    let lent = scope.lend_to_read(buffer).unwrap();
    commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB);
    scope.submit_with(commands).unwrap();
    shown(device, &target)
}

/// One target that was destroyed does not take the others with it.
#[test]
fn an_upload_to_a_destroyed_buffer_takes_no_other_with_it() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        let uploads = device.uploads(64 * KIB, MIB);
        let (gone, kept) = (own(&device, KIB), own(&device, KIB));
        let mut scope = device.scope();
        for target in [&kept, &gone] {
            scope.upload(&uploads, &Unpooled(target), 0, &[4; 512]).unwrap();
        }
        scope.upload(&uploads, &Unpooled(&kept), 512, &[4; 512]).unwrap();
        gone.destroy();
        let refused = scope.submit_with(encoder(&device)).unwrap_err();
        assert_eq!(refused.why, Why::NotSubmitted);
        assert_eq!(shown(&device, &kept), Some(4));
    }
}

/// How the frames take their buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Zeroed,
    ToFill,
    Never,
}

#[test]
fn a_buffer_that_was_destroyed_costs_one_frame_in_each_pool() {
    for device in devices() {
        let errors = Arc::new(AtomicU64::new(0));
        let count = errors.clone();
        let see = move |_| {
            count.fetch_add(1, SeqCst);
        };
        device.device().on_uncaptured_error(Arc::new(see));
        for takes in [Takes::Zeroed, Takes::ToFill, Takes::Never] {
            let pool = match takes {
                Takes::Never => BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build(),
                _ => BucketPool::new(device.clone()),
            };
            let mut refused = 0;
            for frame in 0..8 {
                let scope = device.scope();
                let taken = match takes {
                    Takes::ToFill => scope.take_to_fill(&pool, KIB),
                    _ => scope.take(&pool, KIB),
                };
                let taken = taken.unwrap();
                refused += u32::from(!frame_is_accepted(&device, scope, &taken, frame == 0));
            }
            let wrong = errors.swap(0, SeqCst);
            assert!(refused <= 1 && wrong <= 1, "{takes:?}: {refused} refused, {wrong} errors");
            assert!(pool.stats().misses <= 2, "{takes:?}: {:?}", pool.stats());
        }
    }
}

/// A frame that clears a buffer, and whether wgpu took it.
fn frame_is_accepted(device: &WgpuAllocator, scope: Scope, taken: &Pooled, destroys: bool) -> bool {
    let raw = scope.lend(taken).unwrap();
    let mut commands = encoder(device);
    commands.clear_buffer(&raw, 0, None);
    let is_accepted = scope.submit_with(commands).is_ok();
    if destroys {
        raw.destroy();
    }
    is_accepted
}
