//! What the pool keeps: nothing of it grows with the frames.

use crate::groups::{layout_of_storage, layout_of_textures, texture_of};
use crate::present::{devices, noop, vulkan};
use crate::{encoder, own};
use pool_core::{BucketPool, KIB, MIB};
use pool_wgpu::{Unpooled, WgpuAllocator};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use wgpu::{
    Extent3d, PollType, TextureDescriptor, TextureDimension, TextureFormat, TextureUsages,
    TextureViewDescriptor,
};

/// A frame whose prologue is left out, for whose blocks it was to zero.
fn left_out(device: &WgpuAllocator, pool: &BucketPool<WgpuAllocator>) {
    let mut scope = device.scope();
    let buffer = scope.take(pool, KIB).unwrap();
    let lent = scope.lend(&buffer).unwrap();
    scope.encoder().clear_buffer(&lent, 0, None);
    drop(buffer);
    scope.submit().unwrap();
    let scope = device.scope();
    let buffer = scope.take(pool, KIB).unwrap();
    let mut commands = encoder(device);
    commands.clear_buffer(&scope.lend(&buffer).unwrap(), 0, None);
    let prologue = scope.prologue(&mut commands).unwrap();
    device.queue().submit([commands.finish()]);
    drop((prologue, buffer));
    device.device().poll(PollType::wait_indefinitely()).unwrap();
}

/// A closure that panics, as it does in tests, in a frame loop that catches panics.
#[test]
fn a_panic_of_a_closure_leaves_no_scope_open() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let armed = Arc::new(AtomicBool::new(true));
        let is_armed = armed.clone();
        device.on_fault(move |fault| assert!(!is_armed.swap(false, SeqCst), "told: {fault}"));
        left_out(&device, &pool);
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(device.scope()))).is_err();
        assert!(panicked, "the closure was told");
        let before = pool.stats().misses;
        for _ in 0..20 {
            let mesh = pool.allocate(KIB).unwrap();
            let scope = device.scope();
            let mut commands = encoder(&device);
            commands.clear_buffer(&scope.lend(&mesh).unwrap(), 0, None);
            scope.submit_with(commands).unwrap();
            drop(mesh);
        }
        assert!(pool.stats().misses <= before + 1, "{:?}", pool.stats());
        pool.clear().unwrap();
        assert_eq!(pool.reserved_bytes(), 0);
    }
}

/// A closure that holds the allocator keeps the device until another takes its place.
#[test]
fn a_closure_goes_when_another_takes_its_place() {
    let device = noop();
    let held = Arc::new(());
    let (lost, fault, refused) = (held.clone(), held.clone(), held.clone());
    let [a, b, c] = [(); 3].map(|()| device.clone());
    device.on_lost(move |_, _| drop((lost.clone(), a.clone())));
    device.on_fault(move |_| drop((fault.clone(), b.clone())));
    device.on_refused(move |_| drop((refused.clone(), c.clone())));
    assert_eq!(Arc::strong_count(&held), 4);
    device.on_lost(|_, _| {});
    device.on_fault(|_| {});
    device.on_refused(|_| {});
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Debug builds tell of a scope that was dropped although its buffers may be in another encoder.
#[test]
fn a_panic_of_a_closure_in_a_drop_leaves_no_scope_open() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let count = Arc::new(AtomicU32::new(0));
        let told = count.clone();
        device.on_fault(move |fault| {
            told.fetch_add(1, SeqCst);
            panic!("told: {fault}");
        });
        for unwinds in [false, true] {
            let dropped = catch_unwind(AssertUnwindSafe(|| {
                let scope = device.scope();
                let buffer = scope.take(&pool, KIB).unwrap();
                let _lent = scope.lend(&buffer).unwrap();
                assert!(!unwinds, "the frame's own panic");
            }));
            assert_eq!(dropped.is_err(), unwinds || cfg!(debug_assertions));
        }
        assert_eq!(count.load(SeqCst), if cfg!(debug_assertions) { 2 } else { 0 });
        let mut scope = device.scope();
        let _ = scope.encoder();
        drop(scope.take(&pool, KIB).unwrap());
        assert_eq!(pool.stats().misses, 1, "no scope is open that has the block");
    }
}

/// A program that uses the cache of bind groups alone, or that opens no scope for a while.
#[test]
fn groups_go_without_scopes_too() {
    for device in devices() {
        let layout = layout_of_storage(&device);
        let kept = own(&device, KIB);
        let mut most = 0;
        for _ in 0..10_000 {
            let buffer = own(&device, KIB);
            device.bind_group(&layout, &[(0, &Unpooled(&buffer))]).unwrap();
            device.bind_group(&layout, &[(0, &Unpooled(&kept))]).unwrap();
            most = most.max(device.bind_group_stats().cached);
        }
        assert!(most <= 128 * 64, "{most} groups of buffers that are gone");
        assert_eq!(device.bind_group_stats().hits, 9999, "the one that is used stays");
    }
}

#[test]
fn textures_that_only_groups_keep_alive_have_a_bound_in_bytes() {
    let Some(device) = vulkan() else { return };
    let layout = layout_of_textures(&device);
    for _ in 0..200 {
        let view = texture_of(&device, 1024).create_view(&TextureViewDescriptor::default());
        device.bind_group(&layout, &[(0, &view)]).unwrap();
    }
    let cached = device.bind_group_stats().cached as u64;
    assert!(cached * 4 * MIB <= 128 * MIB, "{cached} textures of 4 MiB");
}

/// A frame of more groups than the bound has room for: it grows to what the program uses again.
#[test]
fn the_bound_on_groups_is_no_less_than_what_is_used_again() {
    let device = noop();
    let layout = layout_of_storage(&device);
    let held: Vec<_> = (0..20_000).map(|_| own(&device, 4)).collect();
    for _ in 0..6 {
        for buffer in &held {
            device.bind_group(&layout, &[(0, &Unpooled(buffer))]).unwrap();
        }
    }
    let before = device.bind_group_stats().misses;
    for buffer in &held {
        device.bind_group(&layout, &[(0, &Unpooled(buffer))]).unwrap();
    }
    assert_eq!(device.bind_group_stats().misses, before, "all are cached");
}

/// A window that is dragged: a target of another size in each frame.
#[test]
fn idle_textures_have_a_bound_in_bytes() {
    for device in devices() {
        let targets = device.textures();
        targets.forget_after(1000);
        targets.keep(MIB);
        let most = (0..100).map(|frame| {
            let scope = device.scope();
            let target = scope.take_texture(&targets, &described(64 + frame)).unwrap();
            scope.submit_with(encoder(&device)).unwrap();
            drop(target);
            targets.idle_bytes()
        });
        let most = most.max().unwrap();
        assert!((MIB / 2..=MIB).contains(&most), "{most} B are idle");
        targets.clear();
        assert_eq!((targets.idle(), targets.idle_bytes()), (0, 0));
        // By age too, which is short: one size for a few frames, and then another.
        let targets = device.textures();
        for frame in 0..20 {
            let scope = device.scope();
            drop(scope.take_texture(&targets, &described(64 + frame)).unwrap());
            scope.submit_with(encoder(&device)).unwrap();
        }
        assert!(targets.idle() <= 9, "{targets:?}");
    }
}

fn described(side: u32) -> TextureDescriptor<'static> {
    TextureDescriptor {
        label: None,
        size: Extent3d { width: side, height: 256, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format: TextureFormat::Rgba8Unorm,
        usage: TextureUsages::RENDER_ATTACHMENT,
        view_formats: &[],
    }
}

/// A picker that keeps the newest read-back alone.
#[test]
fn a_read_back_that_is_dropped_before_it_came_keeps_its_buffer() {
    for device in devices() {
        let (source, backs) = (own(&device, 64 * KIB), device.read_backs(16 * MIB));
        for with_prologue in [false, true] {
            for _ in 0..50 {
                let (mut scope, mut commands) = (device.scope(), encoder(&device));
                let place = Unpooled(&source);
                if with_prologue {
                    let read =
                        scope.read_back_in(&mut commands, &backs, &place, 0, 48 * KIB).unwrap();
                    let prologue = scope.prologue(&mut commands).unwrap();
                    device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                    drop(read);
                } else {
                    let read = scope.read_back(&backs, &place, 0, 48 * KIB).unwrap();
                    scope.submit().unwrap();
                    drop(read);
                }
                device.device().poll(PollType::wait_indefinitely()).unwrap();
            }
            assert_eq!(backs.reserved_bytes(), 64 * KIB, "prologue: {with_prologue}");
        }
        // It shows the bytes of its last use, and no others.
        device.queue().write_buffer(&source, 0, &[6; 1024]);
        let mut scope = device.scope();
        let read = scope.read_back(&backs, &Unpooled(&source), 0, 48 * KIB).unwrap();
        scope.submit().unwrap();
        assert!(read.wait(|bytes| bytes[..1024] == [6; 1024]).unwrap());
        assert_eq!(backs.reserved_bytes(), 64 * KIB);
    }
}
