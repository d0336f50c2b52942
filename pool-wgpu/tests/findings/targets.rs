//! Read-backs by copies of the program's own.

use crate::present::{devices, noop};
use crate::{encoder, filled};
use pool_core::{KIB, Why};
use pool_wgpu::Unpooled;
use wgpu::{
    Extent3d, Origin3d, TexelCopyBufferInfo, TexelCopyBufferLayout, TextureDescriptor,
    TextureDimension, TextureFormat, TextureUsages,
};

#[test]
fn copies_of_the_program_bring_their_bytes_and_the_buffer_serves_again() {
    for device in devices() {
        let backs = device.read_backs(64 * KIB);
        let source = filled(&device, 7);
        for frame in 0..8 {
            let mut scope = device.scope();
            let mut commands = encoder(&device);
            let (back, target) = scope.read_back_target(&mut commands, &backs, 60).unwrap();
            let (other, second) = scope.read_back_target(&mut commands, &backs, 1000).unwrap();
            assert_ne!(target, second);
            commands.copy_buffer_to_buffer(&source, 0, &target, 0, 60);
            commands.copy_buffer_to_buffer(&source, 0, &second, 0, 1000);
            let shared = scope.read_back_in(&mut commands, &backs, &Unpooled(&source), 0, 8);
            if frame % 2 == 0 {
                scope.submit_with(commands).unwrap();
            } else {
                let prologue = scope.prologue(&mut commands).unwrap();
                device.queue().submit(prologue.into_iter().chain([commands.finish()]));
            }
            assert!(back.wait(|bytes| bytes == [7; 60]).unwrap());
            assert!(other.wait(|bytes| bytes == [7; 1000]).unwrap());
            assert!(shared.unwrap().wait(|bytes| bytes == [7; 8]).unwrap());
        }
        assert_eq!(backs.reserved_bytes(), 4 * KIB, "each frame has the same three");
        assert_eq!(device.faults(), []);
    }
}

#[test]
fn a_copy_that_never_ran_is_told_and_shows_no_earlier_result() {
    for device in devices() {
        let backs = device.read_backs(64 * KIB);
        let source = filled(&device, 7);
        let mut scope = device.scope();
        let mut commands = encoder(&device);
        let (back, target) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        commands.copy_buffer_to_buffer(&source, 0, &target, 0, 64);
        scope.submit_with(commands).unwrap();
        back.wait(|_| ()).unwrap();
        drop(back);

        // wgpu refuses the commands: the target is too small for its copy.
        let mut scope = device.scope();
        let mut commands = encoder(&device);
        let (back, target) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        commands.copy_buffer_to_buffer(&source, 0, &target, 0, 64);
        commands.copy_buffer_to_buffer(&source, 0, &target, 4096, 64);
        assert_eq!(scope.submit_with(commands).unwrap_err().why, Why::NotSubmitted);
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);

        // The encoder is dropped; the prologue is submitted.
        let mut scope = device.scope();
        let mut commands = encoder(&device);
        let (back, _target) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        let prologue = scope.prologue(&mut commands).unwrap();
        drop(commands);
        device.queue().submit(prologue);
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
    }
}

#[test]
fn a_copy_beyond_the_bytes_is_told_and_harms_no_other() {
    for device in devices() {
        let backs = device.read_backs(64 * KIB);
        let source = filled(&device, 7);
        let mut scope = device.scope();
        let mut commands = encoder(&device);
        let (long, target) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        let (right, second) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        commands.copy_buffer_to_buffer(&source, 0, &target, 0, 128);
        commands.copy_buffer_to_buffer(&source, 0, &second, 0, 64);
        scope.submit_with(commands).unwrap();
        assert_eq!(long.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
        assert!(right.wait(|bytes| bytes == [7; 64]).unwrap());
    }
}

#[test]
fn texels_come_back_in_the_rows_that_the_program_wants() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(KIB, KIB), device.read_backs(64 * KIB));
        let size = Extent3d { width: 5, height: 2, depth_or_array_layers: 1 };
        let texture = device.device().create_texture(&TextureDescriptor {
            label: None,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: TextureDimension::D2,
            format: TextureFormat::R8Uint,
            usage: TextureUsages::COPY_SRC | TextureUsages::COPY_DST,
            view_formats: &[],
        });
        let mut scope = device.scope();
        let rows = TexelCopyBufferLayout { bytes_per_row: Some(5), ..Default::default() };
        scope
            .upload_texture(
                &uploads,
                texture.as_image_copy(),
                &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
                rows,
                size,
            )
            .unwrap();
        let mut commands = encoder(&device);
        let (back, buffer) = scope.read_back_target(&mut commands, &backs, 512).unwrap();
        let layout = TexelCopyBufferLayout { bytes_per_row: Some(256), ..Default::default() };
        let from = wgpu::TexelCopyTextureInfo { origin: Origin3d::ZERO, ..texture.as_image_copy() };
        let to = TexelCopyBufferInfo { buffer: &buffer, layout };
        commands.copy_texture_to_buffer(from, to, size);
        scope.submit_with(commands).unwrap();
        let rows = back.wait(|bytes| (bytes[..5].to_vec(), bytes[256..261].to_vec())).unwrap();
        // The noop device copies no texels.
        if device.device().adapter_info().backend != wgpu::Backend::Noop {
            assert_eq!(rows, (vec![1, 2, 3, 4, 5], vec![6, 7, 8, 9, 10]));
        }
    }
}

#[test]
fn a_target_of_another_device_or_without_end_is_refused() {
    let (device, other) = (noop(), noop());
    let backs = device.read_backs(KIB);
    let mut commands = encoder(&other);
    let refused = other.scope().read_back_target(&mut commands, &backs, 64).unwrap_err();
    assert_eq!(refused.why, Why::Foreign);
    let mut commands = encoder(&device);
    let refused = device.scope().read_back_target(&mut commands, &backs, u64::MAX).unwrap_err();
    assert_eq!(refused.why, Why::TooLarge);
    device.mark_lost();
    let refused = device.scope().read_back_target(&mut commands, &backs, 64).unwrap_err();
    assert_eq!(refused.why, Why::Lost);
}

#[test]
fn a_prologue_behind_the_copies_is_told() {
    for device in devices() {
        let backs = device.read_backs(64 * KIB);
        let source = filled(&device, 7);
        let mut scope = device.scope();
        let mut commands = encoder(&device);
        let (back, target) = scope.read_back_target(&mut commands, &backs, 64).unwrap();
        commands.copy_buffer_to_buffer(&source, 0, &target, 0, 64);
        let prologue = scope.prologue(&mut commands).unwrap();
        device.queue().submit([commands.finish()].into_iter().chain(prologue));
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
    }
}
