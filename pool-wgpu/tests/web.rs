//! The WebGPU of browsers, where what native devices do at once is awaited: `cargo xtask web` runs
//! it in Node.
#![cfg(target_family = "wasm")]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator as _, KIB, MIB, PooledBuffer, StreamClock as _, Why,
    ZeroPolicy,
};
use pool_wgpu::{ReadBacks, Uniform, Unpooled, WgpuAllocator, WgpuSlabs};
use wasm_bindgen_test::wasm_bindgen_test;
use wgpu::{BufferUsages, CommandEncoderDescriptor};

async fn device() -> WgpuAllocator {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::BROWSER_WEBGPU,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await.unwrap();
    let required_limits = adapter.limits();
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
    let (device, queue) = adapter.request_device(&descriptor).await.unwrap();
    WgpuAllocator::new(device, queue)
}

/// The bytes of a buffer, by another scope.
async fn shown(backs: &ReadBacks, buffer: &PooledBuffer<WgpuAllocator>) -> Vec<u8> {
    let mut scope = buffer.allocator().scope();
    let mut back = {
        let on = scope.stream();
        let view = buffer.on(&on).unwrap();
        scope.read_back(backs, &view, 0, view.size()).unwrap()
    };
    scope.submit().unwrap();
    (&mut back).await.unwrap();
    back.lend(<[u8]>::to_vec).unwrap()
}

#[wasm_bindgen_test]
async fn what_is_uploaded_comes_back() {
    let device = device().await;
    let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    for frame in 0..10_u8 {
        let mut scope = device.scope();
        scope.upload_eagerly();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, 16 * KIB).unwrap();
        for part in 0..16 {
            let (view, data) = (buffer.on(&on).unwrap(), [frame.wrapping_mul(16) + part; 1024]);
            scope.upload(&uploads, &view, u64::from(part) * KIB, &data).unwrap();
        }
        scope.submit().unwrap();
        let shown = shown(&backs, &buffer).await;
        let right = |(part, shown): (usize, &[u8])| {
            shown.iter().all(|byte| usize::from(*byte) == usize::from(frame) * 16 % 256 + part)
        };
        assert!(shown.chunks(1024).enumerate().all(right), "frame {frame}");
    }
    assert_eq!(pool.stats().misses, 1);
    assert!(uploads.reserved_bytes() <= 64 * KIB, "{uploads:?}");
    assert_eq!(backs.reserved_bytes(), 32 * KIB, "16 KiB and a stamp");
}

#[wasm_bindgen_test]
async fn old_contents_are_not_shown() {
    let device = device().await;
    let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
    let pool = BucketPool::new(device.clone());
    for turn in 0..5 {
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, 1021).unwrap();
        let view = buffer.on(&on).unwrap();
        let _ = scope.encoder(); // where the raw buffer is used
        let raw = Unpooled(view.buffer().unwrap());
        let mut whole = scope.read_back(&backs, &raw, 0, buffer.allocated_size()).unwrap();
        scope.upload(&uploads, &raw, 0, &[0xAB; 1024]).unwrap();
        scope.submit().unwrap();
        (&mut whole).await.unwrap();
        assert!(whole.lend(|shown| shown == [0; 1024]).unwrap(), "turn {turn}");
    }
    assert_eq!((pool.stats().misses, pool.stats().hits), (1, 4));
}

#[wasm_bindgen_test]
async fn a_block_of_an_open_scope_serves_that_scope_only() {
    let device = device().await;
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    let (first, second) = (device.scope(), device.scope());
    drop(pool.allocate_on(&first.stream(), KIB).unwrap());
    let elsewhere = pool.allocate_on(&second.stream(), KIB).unwrap();
    assert_eq!(pool.stats().misses, 2);
    let again = pool.allocate_on(&first.stream(), KIB).unwrap();
    assert_eq!(pool.stats().misses, 2);
    first.submit().unwrap();
    drop((again, elsewhere));
    second.submit().unwrap();
    drop(pool.allocate(KIB).unwrap());
    assert_eq!(pool.stats().misses, 2, "ordered for everybody");
}

#[wasm_bindgen_test]
async fn slabs_are_cut_at_the_devices_alignment() {
    let device = device().await;
    let slabs = WgpuSlabs::<Uniform>::new(device.clone());
    let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
    let scope = device.scope();
    let on = scope.stream();
    let (a, b) = (pool.allocate_on(&on, 100).unwrap(), pool.allocate_on(&on, 100).unwrap());
    let (a, b) = (a.on(&on).unwrap(), b.on(&on).unwrap());
    let alignment = device.device().limits().min_uniform_buffer_offset_alignment;
    assert_eq!(a.buffer().unwrap(), b.buffer().unwrap());
    assert!(a.offset().abs_diff(b.offset()).is_multiple_of(alignment.into()));
}

#[wasm_bindgen_test]
async fn what_a_browser_has_not_is_refused() {
    let early = WgpuAllocator::on_default_adapter().unwrap_err();
    assert_eq!(early.why, Why::Unsupported, "a program must not wait for it");
    let device = device().await;
    let placed = device.frame_data(BufferUsages::UNIFORM, KIB, MIB).unwrap_err();
    assert_eq!(placed.why, Why::Unsupported);
    let pool = BucketPool::new(device.clone());
    let large = pool.allocate(device.largest() + 1).unwrap_err();
    assert_eq!(large.why(), Why::TooLarge);
    let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
    let buffer = pool.allocate(64).unwrap();
    let mut scope = device.scope();
    let on = scope.stream();
    let view = buffer.on(&on).unwrap();
    scope.upload(&uploads, &view, 0, &[7; 64]).unwrap();
    let back = scope.read_back(&backs, &view, 0, 64).unwrap();
    scope.submit().unwrap();
    let refused = back.wait(|_| ()).unwrap_err();
    assert_eq!(refused.call, "wait in a browser, where a program must not block: await it");
    assert_eq!(device.kept_clones().unwrap_err().why, Why::Unsupported);
}

#[wasm_bindgen_test]
async fn h3_an_upload_maps_only_what_it_writes() {
    let device = device().await;
    let (uploads, backs) = (device.uploads(4 * MIB, 4 * MIB), device.read_backs(MIB));
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    for frame in 0..10_u8 {
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, 64).unwrap();
        scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[frame; 64]).unwrap();
        scope.submit().unwrap();
        assert_eq!(shown(&backs, &buffer).await, [frame; 64]);
    }
    assert_eq!(uploads.mapped_bytes(), 640, "of chunks of 4 MiB");
}

#[wasm_bindgen_test]
async fn m5_the_clock_does_not_claim_to_know_what_is_done() {
    let device = device().await;
    let scope = device.scope();
    let mark = device.clock().mark(&scope.stream());
    scope.submit().unwrap();
    assert_eq!(device.clock().is_done(mark).unwrap_err().why, Why::Unsupported);
    assert_eq!(device.clock().synchronize(mark).unwrap_err().why, Why::Unsupported);
}

#[wasm_bindgen_test]
async fn a_prologue_goes_with_the_programs_commands() {
    let device = device().await;
    let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
    let pool = BucketPool::new(device.clone());
    for frame in 0..5_u8 {
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let view = buffer.on(&on).unwrap();
        scope.upload(&uploads, &view, 0, &[frame; 512]).unwrap();
        let mut own = device.device().create_command_encoder(&CommandEncoderDescriptor::default());
        let mut back = scope.read_back_in(&mut own, &backs, &view, 0, KIB).unwrap();
        let prologue = scope.prologue(&mut own).unwrap();
        device.queue().submit(prologue.into_iter().chain([own.finish()]));
        (&mut back).await.unwrap();
        let expected: Vec<u8> = [[frame; 512], [0; 512]].concat();
        assert!(back.lend(|shown| shown == expected).unwrap(), "frame {frame}");
    }
    assert!(pool.stats().misses <= 2, "{}", pool.stats());
    assert!(device.faults().is_empty());
}
