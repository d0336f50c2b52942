//! The scope's own encoder: what is dropped while a pass may be open serves behind that pass.

use crate::present::{devices, uncleared};
use pool_core::{BucketPool, KIB};
use pool_wgpu::WgpuAllocator;
use wgpu::{Extent3d, TextureDescriptor, TextureDimension, TextureFormat, TextureUsages};

#[test]
fn a_buffer_that_is_dropped_inside_of_a_pass_serves_behind_it() {
    for device in devices() {
        for pool in [uncleared(&device), BucketPool::new(device.clone())] {
            let mut scope = device.scope();
            let on = scope.stream();
            let buffer = |pool: &BucketPool<WgpuAllocator>| {
                let taken = pool.allocate_on(&on, KIB).unwrap();
                let raw = taken.on(&on).unwrap().buffer().unwrap().clone();
                (taken, raw)
            };
            let pass = scope.encoder().begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let (first, read) = buffer(&pool);
            drop(first); // a dispatch reads it
            let (second, written) = buffer(&pool);
            assert_ne!(read, written, "the pass would read and write it");
            drop((second, pass));
            let zeroes = pool.stats().hits; // none
            let _ = scope.encoder();
            let (_third, next) = buffer(&pool);
            let behind = next == read || next == written;
            assert!(behind || zeroes == 0 && pool.stats().misses == 3);
        }
        let pool = uncleared(&device);
        let mut scope = device.scope();
        let on = scope.stream();
        for _ in 0..10 {
            let taken = pool.allocate_on(&on, KIB).unwrap();
            let raw = taken.on(&on).unwrap().buffer().unwrap().clone();
            scope.encoder().clear_buffer(&raw, 0, None);
        }
        assert_eq!(pool.stats().misses, 2, "two serve a chain of temporaries");
        scope.submit().unwrap();
    }
}

#[test]
fn a_texture_that_is_dropped_inside_of_a_pass_serves_behind_it() {
    for device in devices() {
        let (textures, mut scope) = (device.textures(), device.scope());
        let descriptor = TextureDescriptor {
            label: None,
            size: Extent3d { width: 4, height: 4, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: TextureDimension::D2,
            format: TextureFormat::Rgba8Unorm,
            usage: TextureUsages::RENDER_ATTACHMENT,
            view_formats: &[],
        };
        let _ = scope.encoder();
        let first = scope.take_texture(&textures, &descriptor).unwrap();
        let drawn = (*first).clone();
        drop(first);
        let second = scope.take_texture(&textures, &descriptor).unwrap();
        assert_ne!(*second, drawn, "a pass may be open");
        let _ = scope.encoder();
        assert_eq!(*scope.take_texture(&textures, &descriptor).unwrap(), drawn);
    }
}
