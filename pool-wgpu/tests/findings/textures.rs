//! Finding 17: texels through the memory of uploads and read-backs, and textures that serve again.

use crate::encoder;
use crate::present::{devices, noop};
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::WgpuAllocator;
use wgpu::{
    BufferUsages, Extent3d, Origin3d, TexelCopyBufferLayout, Texture, TextureDescriptor,
    TextureDimension, TextureFormat, TextureUsages,
};

const COPIED: TextureUsages = TextureUsages::COPY_SRC.union(TextureUsages::COPY_DST);

fn described(size: (u32, u32, u32), format: TextureFormat) -> TextureDescriptor<'static> {
    let (width, height, depth_or_array_layers) = size;
    TextureDescriptor {
        label: None,
        size: Extent3d { width, height, depth_or_array_layers },
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format,
        usage: COPIED,
        view_formats: &[],
    }
}

fn texture(device: &WgpuAllocator, size: (u32, u32, u32), format: TextureFormat) -> Texture {
    device.device().create_texture(&described(size, format))
}

/// Bytes that differ from row to row.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

#[test]
fn texels_come_back_as_they_went() {
    let cases = [
        ((5, 3, 1), TextureFormat::Rgba8Unorm, 4),
        ((64, 2, 1), TextureFormat::Rgba8Unorm, 4), // rows of 256 bytes, without gaps
        ((7, 3, 4), TextureFormat::R8Unorm, 1),
        ((3, 5, 2), TextureFormat::Rgba32Float, 16),
    ];
    for device in devices() {
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        for (size, format, texel) in cases {
            for way in 0..3 {
                let texture = texture(&device, size, format);
                let data = bytes((size.0 * size.1 * size.2 * texel) as usize);
                let layout = TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(size.0 * texel),
                    rows_per_image: Some(size.1),
                };
                let (place, whole) = (texture.as_image_copy(), texture.size());
                let mut scope = device.scope();
                let mut commands = encoder(&device);
                let upload = match way {
                    0 | 1 => scope.upload_texture(&uploads, place, &data, layout, whole),
                    _ => {
                        let data = (&data[..], layout);
                        scope.upload_texture_in(&mut commands, &uploads, place, data, whole)
                    }
                };
                upload.unwrap();
                let back = match way {
                    0 => scope.read_back_texture(&backs, place, whole).unwrap(),
                    _ => scope.read_back_texture_in(&mut commands, &backs, place, whole).unwrap(),
                };
                match way {
                    0 => drop(scope.submit().unwrap()),
                    1 => {
                        let prologue = scope.prologue(&mut commands).unwrap();
                        device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                    }
                    _ => drop(scope.submit_with(commands).unwrap()),
                }
                // The device of wgpu's tests copies no texels.
                let is_real = device.device().adapter_info().backend != wgpu::Backend::Noop;
                let (len, is_same) = back.wait(|shown| (shown.len(), shown == data)).unwrap();
                assert_eq!(len, data.len(), "{size:?}, {format:?}, way {way}");
                assert!(is_same || !is_real, "{size:?}, {format:?}, way {way}");
            }
        }
        assert!(uploads.reserved_bytes() <= 4 * 64 * KIB, "{uploads:?}");
        assert_eq!(device.faults(), []);
    }
}

#[test]
fn texels_that_do_not_fit_are_refused() {
    let device = noop();
    let (uploads, other) = (device.uploads(64 * KIB, MIB), noop());
    let size = (8, 8, 1);
    let target = texture(&device, size, TextureFormat::Rgba8Unorm);
    let layout = TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(32), rows_per_image: None };
    let mut scope = device.scope();
    let mut upload = |place, data: &[u8], layout, size| {
        scope.upload_texture(&uploads, place, data, layout, size).map_err(|error| error.why)
    };
    let (place, whole, data) = (target.as_image_copy(), target.size(), [1; 256]);
    assert_eq!(upload(place, &data, layout, whole), Ok(()));
    assert_eq!(upload(place, &data[1..], layout, whole), Err(Why::OutOfRange));
    let skipping = TexelCopyBufferLayout { offset: 4, ..layout };
    assert_eq!(upload(place, &data, skipping, whole), Err(Why::OutOfRange));
    let mut beside = place;
    beside.origin = Origin3d { x: 1, y: 0, z: 0 };
    assert_eq!(upload(beside, &data, layout, whole), Err(Why::OutOfRange));
    let mut below = place;
    below.mip_level = 1;
    assert_eq!(upload(below, &data, layout, whole), Err(Why::OutOfRange));
    // Texels instead of bytes: wgpu says the same of `Queue::write_texture`.
    for (bytes_per_row, rows_per_image) in [(8, None), (0, None), (31, None), (32, Some(7))] {
        let bytes_per_row = Some(bytes_per_row);
        let overlaps = TexelCopyBufferLayout { offset: 0, bytes_per_row, rows_per_image };
        assert_eq!(upload(place, &data, overlaps, whole), Err(Why::OutOfRange), "{overlaps:?}");
    }
    let none = Extent3d { width: 0, ..whole };
    assert_eq!(upload(place, &[], layout, none), Ok(()));
    let usage = TextureUsages::TEXTURE_BINDING;
    let fixed = described(size, TextureFormat::Rgba8Unorm);
    let fixed = device.device().create_texture(&TextureDescriptor { usage, ..fixed });
    assert_eq!(upload(fixed.as_image_copy(), &data, layout, whole), Err(Why::Unsupported));
    let foreign = other.scope().upload_texture(&uploads, place, &data, layout, whole);
    assert_eq!(foreign.unwrap_err().why, Why::Foreign);
    let backs = device.read_backs(KIB);
    let refused = scope.read_back_texture(&backs, fixed.as_image_copy(), whole).unwrap_err();
    assert_eq!(refused.why, Why::Unsupported);
}

#[test]
fn staging_memory_for_copies_needs_no_feature() {
    let device = noop();
    let data = device.frame_data(BufferUsages::COPY_SRC, 64 * KIB, MIB).unwrap();
    let mut scope = device.scope();
    assert_eq!(scope.place(&data, &[1; 512]).unwrap().size(), 512);
    let uniform = BufferUsages::COPY_SRC | BufferUsages::UNIFORM;
    assert_eq!(device.frame_data(uniform, KIB, KIB).unwrap_err().why, Why::Unsupported);
}

#[test]
fn a_texture_serves_who_comes_behind_its_last_use() {
    for device in devices() {
        let textures = device.textures();
        textures.forget_after(16);
        let descriptor = described((16, 16, 1), TextureFormat::Rgba8Unorm);
        let (first, second) = (device.scope(), device.scope());
        let taken = first.take_texture(&textures, &descriptor).unwrap();
        let texture = (*taken).clone();
        drop(taken);
        let other = second.take_texture(&textures, &descriptor).unwrap();
        assert_ne!(*other, texture, "the first scope may be submitted later");
        first.submit_with(encoder(&device)).unwrap();
        assert_eq!(*second.take_texture(&textures, &descriptor).unwrap(), texture);
        second.submit_with(encoder(&device)).unwrap();
        // Kept for longer than its scope, it may be in any that is open.
        let (third, fourth) = (device.scope(), device.scope());
        let kept = (*other).clone();
        drop(other);
        third.submit_with(encoder(&device)).unwrap();
        let fifth = device.scope();
        let taken = [(); 2].map(|()| fifth.take_texture(&textures, &descriptor).unwrap());
        assert!(taken.iter().all(|taken| **taken != kept), "the fourth may draw to it");
        drop((taken, fourth));
        assert_eq!(textures.idle(), 3);
        for _ in 0..20 {
            drop(device.scope());
        }
        let small = described((8, 8, 1), TextureFormat::Rgba8Unorm);
        drop(fifth.take_texture(&textures, &small).unwrap());
        assert_eq!(textures.idle(), 1, "the others were used by none of the last 16 scopes");
        let refused = noop().scope().take_texture(&textures, &small).unwrap_err();
        assert_eq!(refused.why, Why::Foreign);
        let none = described((0, 8, 1), TextureFormat::Rgba8Unorm);
        assert_eq!(fifth.take_texture(&textures, &none).unwrap_err().why, Why::Unsupported);
    }
}

/// What wgpu would refuse with the whole frame.
#[test]
fn copies_that_a_format_has_not_are_refused() {
    let Some(device) = crate::present::vulkan() else { return };
    let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
    let layout = TexelCopyBufferLayout::default();
    let depth = texture(&device, (4, 4, 1), TextureFormat::Depth32Float);
    let mut scope = device.scope();
    let (place, whole) = (depth.as_image_copy(), depth.size());
    let into = scope.upload_texture(&uploads, place, &[0; 64], layout, whole);
    assert_eq!(into.unwrap_err().why, Why::Unsupported);
    let part = Extent3d { width: 2, ..whole };
    let refused = scope.read_back_texture(&backs, place, part).unwrap_err();
    assert_eq!(refused.why, Why::Unsupported);
    let back = scope.read_back_texture(&backs, place, whole).unwrap();
    let color = texture(&device, (4, 4, 1), TextureFormat::Rgba8Unorm);
    let mut stencil = color.as_image_copy();
    stencil.aspect = wgpu::TextureAspect::StencilOnly;
    let refused = scope.read_back_texture(&backs, stencil, whole).unwrap_err();
    assert_eq!(refused.why, Why::Unsupported);
    scope.submit().unwrap();
    assert_eq!(back.wait(<[u8]>::len).unwrap(), 64);
}

/// A texture that its user destroyed is not handed on.
#[test]
fn a_destroyed_texture_goes() {
    let Some(device) = crate::present::vulkan() else { return };
    let textures = device.textures();
    let descriptor = described((16, 16, 1), TextureFormat::Rgba8Unorm);
    for frame in 0..3 {
        let scope = device.scope();
        let taken = scope.take_texture(&textures, &descriptor).unwrap();
        if frame == 0 {
            taken.destroy();
        }
        let mut commands = encoder(&device);
        if frame > 0 {
            let backs = device.read_backs(MIB);
            let mut scope = scope;
            let place = taken.as_image_copy();
            let back = scope.read_back_texture_in(&mut commands, &backs, place, taken.size());
            scope.submit_with(commands).unwrap();
            assert_eq!(back.unwrap().wait(<[u8]>::len).unwrap(), 1024);
        } else {
            scope.submit_with(commands).unwrap();
        }
    }
    assert_eq!(textures.made(), 2);
}

#[test]
fn a_clone_keeps_a_texture_until_the_last_is_dropped() {
    for device in devices() {
        let targets = device.textures();
        let target = described((4, 4, 1), TextureFormat::Rgba8Unorm);
        let graph = {
            let scope = device.scope();
            let first = scope.take_texture(&targets, &target).unwrap();
            let graph = first.clone();
            assert_eq!((&*graph, graph.view()), (&*first, first.view()));
            scope.submit_with(encoder(&device)).unwrap();
            graph
        };
        let second = device.scope();
        let other = second.take_texture(&targets, &target).unwrap();
        assert_ne!(*other, *graph, "a clone has it still");
        assert_eq!((targets.made(), targets.idle()), (2, 0));
        let texture = (*graph).clone();
        drop((graph, other));
        second.submit_with(encoder(&device)).unwrap();
        assert_eq!(targets.idle(), 2);
        let third = device.scope();
        let both = [(); 2].map(|()| third.take_texture(&targets, &target).unwrap());
        assert!(both.iter().any(|one| **one == texture));
        assert_eq!(targets.made(), 2);
        third.submit_with(encoder(&device)).unwrap();
    }
}

#[test]
fn a_window_that_is_dragged_keeps_the_targets_of_a_few_frames() {
    let device = noop();
    let targets = device.textures();
    targets.forget_after(3);
    for width in 1..100 {
        let scope = device.scope();
        let target = described((width, 64, 1), TextureFormat::Rgba8Unorm);
        drop(scope.take_texture(&targets, &target).unwrap());
        scope.submit_with(encoder(&device)).unwrap();
        assert!(targets.idle() <= 5, "{}", targets.idle());
    }
    for _ in 0..4 {
        drop(device.scope()); // frames that take no texture
    }
    assert_eq!((targets.idle(), targets.idle_bytes()), (0, 0));
}

#[test]
fn a_bound_in_bytes_holds_and_the_oldest_go_first() {
    let device = noop();
    let targets = device.textures();
    targets.keep(8 * 64 * 4 * 2);
    let scope = device.scope();
    let taken = [8, 8, 8].map(|width| {
        let target = described((width, 64, 1), TextureFormat::Rgba8Unorm);
        scope.take_texture(&targets, &target).unwrap()
    });
    let oldest = (*taken[0]).clone();
    drop(taken);
    assert_eq!((targets.idle(), targets.idle_bytes()), (2, 8 * 64 * 4 * 2));
    scope.submit_with(encoder(&device)).unwrap();
    let scope = device.scope();
    let again = [(); 2].map(|()| {
        scope.take_texture(&targets, &described((8, 64, 1), TextureFormat::Rgba8Unorm)).unwrap()
    });
    assert!(again.iter().all(|texture| **texture != oldest));
    scope.submit_with(encoder(&device)).unwrap();
}

#[test]
fn a_scope_that_binds_a_pooled_texture_counts_as_a_user() {
    let device = noop();
    let targets = device.textures();
    let mut target = described((4, 4, 1), TextureFormat::Rgba8Unorm);
    target.usage |= TextureUsages::TEXTURE_BINDING;
    let entry = wgpu::BindGroupLayoutEntry {
        binding: 0,
        visibility: wgpu::ShaderStages::FRAGMENT,
        ty: wgpu::BindingType::Texture {
            sample_type: wgpu::TextureSampleType::Float { filterable: true },
            view_dimension: wgpu::TextureViewDimension::D2,
            multisampled: false,
        },
        count: None,
    };
    let layout = device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &[entry],
    });
    let (first, second) = (device.scope(), device.scope());
    let history = first.take_texture(&targets, &target).unwrap();
    second.bind_group(&layout, &[(0, &history)]).unwrap();
    let refused = noop().scope().bind_group(&layout, &[(0, &history)]).unwrap_err();
    assert_eq!(refused.why, Why::Foreign);
    let texture = (*history).clone();
    drop(history);
    first.submit_with(encoder(&device)).unwrap();
    let third = device.scope();
    let other = third.take_texture(&targets, &target).unwrap();
    assert_ne!(*other, texture, "the second scope reads it");
    second.submit_with(encoder(&device)).unwrap();
    let again = third.take_texture(&targets, &target).unwrap();
    assert_eq!(*again, texture);
    third.submit_with(encoder(&device)).unwrap();
}

#[test]
fn a_lent_texture_is_no_buffer_of_the_same_number() {
    for device in devices() {
        let (uploads, targets) = (device.uploads(64 * KIB, MIB), device.textures());
        let pool = BucketPool::new(device.clone());
        let mut scope = device.scope();
        // wgpu counts textures and buffers apart, so one of these buffers has the number of the texture.
        let buffers: Vec<_> = (0..8).map(|_| scope.take(&pool, KIB).unwrap()).collect();
        let _lent =
            scope.take_texture(&targets, &described((4, 4, 1), TextureFormat::R8Unorm)).unwrap();
        for buffer in &buffers {
            for byte in [1, 2] {
                scope.upload(&uploads, buffer, 0, &[byte; 64]).unwrap();
            }
        }
        let _ = scope.encoder();
        scope.submit().unwrap();
    }
}
