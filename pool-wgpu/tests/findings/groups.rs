//! Cached bind groups, and what they bind.

use crate::own;
use crate::present::{devices, noop_by, uncleared};
use pool_core::{BucketPool, KIB, Why};
use pool_wgpu::{Bindable, BindingArray, Unpooled, WgpuAllocator};
use std::num::NonZeroU32;
use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBindingType, DeviceDescriptor, Features, Limits, ShaderStages, Texture,
    TextureDescriptor, TextureViewDescriptor,
};

/// A layout of one binding.
fn layout(device: &WgpuAllocator, ty: BindingType, count: Option<NonZeroU32>) -> BindGroupLayout {
    let (binding, visibility) = (0, ShaderStages::COMPUTE);
    device.device().create_bind_group_layout(&BindGroupLayoutDescriptor {
        label: None,
        entries: &[BindGroupLayoutEntry { binding, visibility, ty, count }],
    })
}

fn storage(device: &WgpuAllocator, has_dynamic_offset: bool) -> BindGroupLayout {
    let ty = BufferBindingType::Storage { read_only: false };
    let ty = BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None };
    layout(device, ty, None)
}

fn sampled(device: &WgpuAllocator) -> BindGroupLayout {
    let ty = BindingType::Texture {
        sample_type: wgpu::TextureSampleType::Float { filterable: true },
        view_dimension: wgpu::TextureViewDimension::D2,
        multisampled: false,
    };
    layout(device, ty, None)
}

/// A layout of one binding for storage.
pub(crate) fn layout_of_storage(device: &WgpuAllocator) -> BindGroupLayout {
    storage(device, false)
}

/// A layout of one binding for a texture.
pub(crate) fn layout_of_textures(device: &WgpuAllocator) -> BindGroupLayout {
    sampled(device)
}

fn texture(device: &WgpuAllocator) -> Texture {
    texture_of(device, 64)
}

/// A texture of so many texels on each side.
pub(crate) fn texture_of(device: &WgpuAllocator, side: u32) -> Texture {
    device.device().create_texture(&TextureDescriptor {
        label: None,
        size: wgpu::Extent3d { width: side, height: side, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: wgpu::TextureFormat::Rgba8Unorm,
        usage: wgpu::TextureUsages::TEXTURE_BINDING,
        view_formats: &[],
    })
}

/// Finding 12: a frame of 5000 groups finds all of them in the next frame.
#[test]
fn the_cache_is_as_large_as_a_frame() {
    for device in devices() {
        let (pool, layout) = (uncleared(&device), storage(&device, false));
        let held: Vec<_> = (0..5000).map(|_| pool.allocate(KIB).unwrap()).collect();
        for frame in 0..3 {
            let mut scope = device.scope();
            let _ = scope.encoder();
            let on = scope.stream();
            for buffer in &held {
                device.bind_group(&layout, &[(0, &buffer.on(&on).unwrap())]).unwrap();
            }
            scope.submit().unwrap();
            let stats = device.bind_group_stats();
            assert_eq!((stats.cached, stats.hits, stats.misses), (5000, 5000 * frame, 5000));
        }
    }
}

/// Finding 13: what no frame uses any more goes, and the textures that it keeps.
#[test]
fn groups_of_dead_textures_go_by_age() {
    for device in devices() {
        let (layout, kept) =
            (sampled(&device), texture(&device).create_view(&TextureViewDescriptor::default()));
        let mut most = 0;
        device.forget_after(16);
        for _ in 0..200 {
            let scope = device.scope();
            let view = texture(&device).create_view(&TextureViewDescriptor::default());
            for view in [&view, &kept] {
                device.bind_group(&layout, &[(0, view)]).unwrap();
            }
            scope.submit().unwrap();
            most = most.max(device.bind_group_stats().cached);
        }
        assert!((3..=20).contains(&most), "{most}");
        let stats = device.bind_group_stats();
        assert_eq!((stats.hits, stats.misses), (199, 201), "the one that is used stays");
        device.forget_bind_groups_of(kept.texture());
        assert_eq!(device.bind_group_stats().cached, stats.cached - 1);
    }
}

/// Finding 18: a camera of the program's own beside a pooled buffer, and one element for dynamic offsets.
#[test]
fn own_buffers_and_parts_are_bound() {
    for device in devices() {
        let (camera, layout) = (own(&device, KIB), storage(&device, true));
        let groups = [0, 256].map(|at| {
            let part = Unpooled(&camera);
            device.bind_group(&layout, &[(0, &part.part(at..at + 256))]).unwrap()
        });
        assert_ne!(groups[0], groups[1]);
        let pool = BucketPool::new(device.clone());
        let scope = device.scope();
        let buffer = scope.take(&pool, KIB).unwrap();
        let on = scope.stream();
        let view = buffer.on(&on).unwrap();
        let bind = |part: &dyn Bindable| device.bind_group(&layout, &[(0, part)]);
        assert_eq!(bind(&view.part(0..256)).unwrap(), bind(&view.part(0..256)).unwrap());
        assert_eq!(bind(&view.part(512..2 * KIB)).unwrap_err().why, Why::OutOfRange);
        assert_eq!(bind(&view.part(0..0)).unwrap_err().why, Why::Unsupported);
        assert_eq!(bind(&view.part(0..256).part(0..4)).unwrap_err().why, Why::Unsupported);
        assert_eq!(bind(&BindingArray(&[&view])).unwrap_err().why, Why::Unsupported);
        drop(view);
        scope.submit_with(crate::encoder(&device)).unwrap();
    }
}

#[test]
fn arrays_of_one_kind_are_bound() {
    let device = noop_by(&DeviceDescriptor {
        required_features: Features::TEXTURE_BINDING_ARRAY,
        required_limits: Limits {
            max_binding_array_elements_per_shader_stage: 2,
            ..Limits::default()
        },
        ..DeviceDescriptor::default()
    });
    let ty = BindingType::Texture {
        sample_type: wgpu::TextureSampleType::Float { filterable: true },
        view_dimension: wgpu::TextureViewDimension::D2,
        multisampled: false,
    };
    let layout = layout(&device, ty, NonZeroU32::new(2));
    let views = [texture(&device), texture(&device)];
    let views = views.map(|texture| texture.create_view(&TextureViewDescriptor::default()));
    let buffer = own(&device, KIB);
    let bind =
        |elements: &[&dyn Bindable]| device.bind_group(&layout, &[(0, &BindingArray(elements))]);
    let first = bind(&[&views[0], &views[1]]).unwrap();
    assert_eq!(bind(&[&views[0], &views[1]]).unwrap(), first);
    assert_ne!(bind(&[&views[1], &views[0]]).unwrap(), first);
    assert_eq!(bind(&[&views[0], &Unpooled(&buffer)]).unwrap_err().why, Why::Unsupported);
    assert_eq!(bind(&[]).unwrap_err().why, Why::Unsupported);
    device.forget_bind_groups_of(views[0].texture());
    assert_eq!(device.bind_group_stats().cached, 0);
}
