//! A test for each item of the audit of November 2026 that a device without a browser can show. H1
//! and H2 are in `external.rs`, H3 and M5 in `web.rs`.
#![expect(clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::port::Limit;
use pool_core::{BucketPool, DeviceAllocator, KIB, MIB, StreamClock, Why};
use pool_wgpu::{InFlight, ReadWrite, Unpooled, WgpuAllocator, WgpuSlabs};
use present::{devices, noop, uncleared, vulkan};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use wgpu::{Buffer, BufferDescriptor, BufferUsages, PollType, ShaderStages};

/// A buffer that no pool has.
fn own(device: &WgpuAllocator, bytes: u64) -> Buffer {
    device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: bytes,
        usage: BufferUsages::COPY_SRC | BufferUsages::COPY_DST | BufferUsages::STORAGE,
        mapped_at_creation: false,
    })
}

#[test]
fn m1_what_a_step_has_dropped_serves_the_next_step_zeroed() {
    for device in devices() {
        let pool = BucketPool::new(device.clone()); // which zeroes
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        for frame in 0..3 {
            let mut scope = device.scope();
            let on = scope.stream();
            let mut shown = Vec::new();
            for step in 0..8_u8 {
                let buffer = pool.allocate_on(&on, KIB).unwrap();
                let view = buffer.on(&on).unwrap();
                scope.upload(&uploads, &view, 512, &[step + 1; 512]).unwrap();
                shown.push((step, scope.read_back(&backs, &view, 0, KIB).unwrap()));
                drop(view);
                drop(buffer);
                scope.end_step();
            }
            scope.submit().unwrap();
            for (step, back) in shown {
                let expected: Vec<u8> = [[0; 512], [step + 1; 512]].concat();
                assert!(back.wait(|shown| shown == expected).unwrap(), "{frame}, {step}");
            }
        }
        assert_eq!(pool.stats().misses, 1, "one block for 24 steps");
    }
}

#[test]
fn m1_a_step_that_goes_on_keeps_its_blocks() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        drop(buffer.on(&on).unwrap());
        scope.end_step();
        // Its program may have a bind group of it, for the commands of this step.
        drop(buffer);
        let another = pool.allocate_on(&on, KIB).unwrap();
        assert_eq!(pool.stats().misses, 2);
        drop(another);
        scope.flush().unwrap();
        drop(pool.allocate(KIB).unwrap());
        assert_eq!(pool.stats().misses, 2, "what was flushed serves all streams");
    }
}

#[test]
fn m2_read_backs_share_chunks_and_use_them_again() {
    for device in devices() {
        let source = own(&device, KIB);
        // Less than one frame has in flight.
        let backs = device.read_backs(16 * KIB);
        let mut most = 0;
        for _ in 0..10 {
            let mut scope = device.scope();
            let read = |_| scope.read_back(&backs, &Unpooled(&source), 0, 64).unwrap();
            let shown: Vec<_> = (0..1000).map(read).collect();
            scope.submit().unwrap();
            for back in shown {
                back.wait(|shown| assert_eq!(shown.len(), 64)).unwrap();
            }
            most = most.max(backs.reserved_bytes());
        }
        assert!(backs.reserved_bytes() <= 16 * KIB, "idle: {backs:?}");
        // The 1000 read-backs have 62.5 KiB, in chunks of 1, 2, 4 .. KiB.
        assert!(most <= 16 * KIB, "after a frame: {most}");
    }
}

#[test]
fn m4_equal_bindings_are_one_group_which_goes_with_its_buffer() {
    for device in devices() {
        let layout = device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: false },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        let pool = uncleared(&device);
        let mut scope = device.scope();
        let _ = scope.encoder(); // so that no other encoder is thought to use the buffers
        let on = scope.stream();
        let groups = [1001, 1004].map(|bytes| {
            let _ = scope.encoder(); // anew, so that what was dropped serves again
            let buffer = pool.allocate_on(&on, bytes).unwrap();
            device.bind_group(&layout, &[(0, &buffer.on(&on).unwrap())]).unwrap()
        });
        assert_eq!(groups[0], groups[1], "both bind 1004 bytes");
        let _ = scope.encoder();
        let held: Vec<_> = (0..20).map(|_| pool.allocate_on(&on, KIB).unwrap()).collect();
        for buffer in &held {
            device.bind_group(&layout, &[(0, &buffer.on(&on).unwrap())]).unwrap();
        }
        assert_eq!(device.bind_group_stats().cached, 21);
        drop(held);
        drop(scope);
        pool.clear().unwrap();
        assert_eq!(device.bind_group_stats().cached, 0, "the buffers went");
    }
}

#[test]
fn m4_placed_data_textures_and_samplers_are_bound() {
    for device in devices() {
        let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty,
            count: None,
        };
        let layout = device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[
                entry(
                    0,
                    wgpu::BindingType::Buffer {
                        ty: wgpu::BufferBindingType::Uniform,
                        has_dynamic_offset: false,
                        min_binding_size: None,
                    },
                ),
                entry(
                    1,
                    wgpu::BindingType::Texture {
                        sample_type: wgpu::TextureSampleType::Float { filterable: true },
                        view_dimension: wgpu::TextureViewDimension::D2,
                        multisampled: false,
                    },
                ),
                entry(2, wgpu::BindingType::Sampler(wgpu::SamplerBindingType::Filtering)),
            ],
        });
        let texture = device.device().create_texture(&wgpu::TextureDescriptor {
            label: None,
            size: wgpu::Extent3d::default(),
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba8Unorm,
            usage: wgpu::TextureUsages::TEXTURE_BINDING,
            view_formats: &[],
        });
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        let filter = wgpu::FilterMode::Linear;
        let sampler = wgpu::SamplerDescriptor { mag_filter: filter, ..Default::default() };
        let sampler = device.device().create_sampler(&sampler);
        let data = device.frame_data(BufferUsages::UNIFORM, 4 * KIB, 4 * KIB).unwrap();
        let mut groups = Vec::new();
        for frame in 0..4_u8 {
            let mut scope = device.scope();
            let placed = scope.place(&data, &[frame; 64]).unwrap();
            let group = device.bind_group(&layout, &[(0, &placed), (1, &view), (2, &sampler)]);
            groups.push(group.unwrap());
            scope.submit().unwrap();
            device.device().poll(PollType::wait_indefinitely()).unwrap();
        }
        assert!(groups.iter().all(|group| *group == groups[0]), "the same chunk each frame");
        assert_eq!(device.bind_group_stats().cached, 1);
        drop(data);
        assert_eq!(device.bind_group_stats().cached, 0, "the group keeps the chunk");
    }
}

#[test]
fn m6_a_refused_read_back_shows_no_old_bytes_whoever_submits_meanwhile() {
    for device in devices() {
        let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
        device.queue().write_buffer(&source, 0, &[0xAB; 1024]);
        let read = |destroyed: Option<&Buffer>| {
            let mut scope = device.scope();
            if let Some(destroyed) = destroyed {
                scope.encoder().clear_buffer(destroyed, 0, None);
            }
            let back = scope.read_back(&backs, &Unpooled(&source), 0, KIB).unwrap();
            destroyed.map(Buffer::destroy);
            let submitted = scope.submit().map(drop).map_err(|error| error.why);
            let expected = if destroyed.is_some() { Err(Why::NotSubmitted) } else { Ok(()) };
            assert_eq!(submitted, expected);
            // What makes the number of the refused submission look right.
            device.queue().submit([]);
            back.wait(<[u8]>::to_vec)
        };
        for _ in 0..3 {
            assert_eq!(read(None).unwrap(), [0xAB; 1024]);
            let error = read(Some(&own(&device, KIB))).unwrap_err();
            assert_eq!(error.why, Why::NotSubmitted, "{error}");
        }
        assert_eq!(backs.reserved_bytes(), 2 * KIB, "one chunk");
    }
}

/// Zeroing between two steps makes two submissions of them, of which wgpu may refuse the first.
#[test]
fn m6_a_read_back_of_a_refused_step_shows_no_old_bytes_although_the_next_step_ran() {
    for device in devices() {
        let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
        let pool = BucketPool::new(device.clone());
        device.queue().write_buffer(&source, 0, &[0xAB; 1024]);
        let read = |destroyed: &Buffer, destroys: bool| {
            let mut scope = device.scope();
            let on = scope.stream();
            let block = pool.allocate_on(&on, KIB).unwrap();
            scope.encoder().clear_buffer(destroyed, 0, None);
            let back = scope.read_back(&backs, &Unpooled(&source), 0, KIB).unwrap();
            drop(block);
            scope.end_step();
            let again = pool.allocate_on(&on, KIB).unwrap();
            scope.encoder().clear_buffer(again.on(&on).unwrap().buffer().unwrap(), 0, Some(4));
            if destroys {
                destroyed.destroy();
            }
            assert_eq!(scope.submit().is_err(), destroys);
            back.wait(<[u8]>::to_vec)
        };
        assert_eq!(read(&own(&device, KIB), false).unwrap(), [0xAB; 1024]);
        let error = read(&own(&device, KIB), true).unwrap_err();
        assert_eq!(error.why, Why::NotSubmitted, "{error}");
    }
}

#[test]
fn m7_an_upload_is_written_in_place() {
    for device in devices() {
        let (target, backs) = (own(&device, KIB), device.read_backs(MIB));
        let uploads = device.uploads(4 * KIB, MIB);
        let mut scope = device.scope();
        for at in [0, 256] {
            let count = scope.upload_with(&uploads, &Unpooled(&target), at, 256, |memory| {
                let bytes = memory.len();
                memory.write_iter((0..=255_u8).map(|byte| byte ^ 1));
                bytes
            });
            assert_eq!(count.unwrap(), 256, "what the writer returns");
        }
        let back = scope.read_back(&backs, &Unpooled(&target), 0, 512).unwrap();
        scope.submit().unwrap();
        let expected: Vec<u8> = (0..=255).chain(0..=255).map(|byte: u8| byte ^ 1).collect();
        assert!(back.wait(|shown| shown == expected).unwrap());
    }
}

#[test]
fn m8_a_read_back_that_came_too_early_can_be_waited_for_again() {
    for device in devices() {
        let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
        device.queue().write_buffer(&source, 0, &[5; 1024]);
        let mut scope = device.scope();
        let back = scope.read_back(&backs, &Unpooled(&source), 0, KIB).unwrap();
        assert_eq!(back.wait(|_| ()).unwrap_err().why, Why::NotSubmitted);
        scope.submit().unwrap();
        for _ in 0..2 {
            assert!(back.wait(|shown| shown == [5; 1024]).unwrap());
        }
    }
}

#[test]
fn m8_a_read_back_that_is_polled_needs_no_other_poll() {
    for device in devices() {
        let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
        let mut scope = device.scope();
        let mut back = pin!(scope.read_back(&backs, &Unpooled(&source), 0, KIB).unwrap());
        scope.submit().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        while back.as_mut().poll(&mut context).is_pending() {
            thread::yield_now();
        }
        assert!(matches!(back.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    }
}

/// A kernel that takes the CPU some milliseconds, for a device that is behind.
fn slow(device: &WgpuAllocator) -> (wgpu::ComputePipeline, wgpu::BindGroup) {
    let module = device.device().create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(
            "@group(0) @binding(0) var<storage, read_write> words: array<u32>;
            @compute @workgroup_size(64)
            fn turn(@builtin(global_invocation_id) id: vec3<u32>) {
                var word = words[id.x % 64];
                for (var i = 0u; i < 20000u; i++) { word = word * 1664525u + 1013904223u; }
                words[id.x % 64] = word;
            }"
            .into(),
        ),
    });
    let pipeline = device.device().create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("turn"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let group = device.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry {
            binding: 0,
            resource: own(device, KIB).as_entire_binding(),
        }],
    });
    (pipeline, group)
}

#[test]
fn m9_chunks_at_rest_are_under_the_bound_too() {
    for device in devices() {
        let target = own(&device, MIB);
        let uploads = device.bounded_uploads(512 * KIB, 16 * MIB, InFlight::Refuse(MIB));
        let mut scope = device.scope();
        for part in 0..2 {
            let data = vec![1; 512 * 1024];
            scope.upload(&uploads, &Unpooled(&target), part * 512 * KIB, &data).unwrap();
        }
        scope.submit().unwrap();
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert_eq!(uploads.reserved_bytes(), MIB, "two chunks at rest");
        let mut scope = device.scope();
        scope.upload(&uploads, &Unpooled(&target), 0, &vec![2; 1024 * 1024]).unwrap();
        let refused = scope.upload(&uploads, &Unpooled(&target), 0, &[3; 4]).unwrap_err();
        assert_eq!(refused.why, Why::Limit(Limit::Device));
    }
}

#[test]
fn m9_staging_memory_stays_under_its_bound_while_the_device_is_slow() {
    let Some(device) = vulkan() else { return };
    let (target, (pipeline, group)) = (own(&device, MIB), slow(&device));
    let data = vec![3; 256 * 1024];
    let frame = |uploads| {
        let mut scope = device.scope();
        let uploaded = (0..4).try_for_each(|part| {
            scope.upload(uploads, &Unpooled(&target), part * 256 * KIB, &data)
        });
        let mut pass = scope.encoder().begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(256, 1, 1);
        drop(pass);
        scope.submit().unwrap();
        uploaded
    };
    // One frame's worth; lavapipe has up to two in flight. The program itself waits for nothing.
    let waits = device.bounded_uploads(512 * KIB, 16 * MIB, InFlight::Wait(MIB));
    for _ in 0..10 {
        frame(&waits).unwrap();
        assert!(waits.reserved_bytes() <= MIB, "{waits:?}");
    }
    let refuses = device.bounded_uploads(512 * KIB, 16 * MIB, InFlight::Refuse(MIB));
    let refused = (0..10).filter_map(|_| frame(&refuses).err()).collect::<Vec<_>>();
    assert!(refuses.reserved_bytes() <= MIB, "{refuses:?}");
    assert!(!refused.is_empty(), "the device is behind");
    assert!(refused.iter().all(|error| error.why == Why::Limit(Limit::Device)), "{refused:?}");
}

#[test]
fn m9_a_bound_that_open_scopes_fill_is_refused_and_not_waited_for() {
    for device in devices() {
        let uploads = device.bounded_uploads(4 * KIB, MIB, InFlight::Wait(8 * KIB));
        let target = own(&device, 16 * KIB);
        let mut scope = device.scope();
        let upload = |scope: &mut pool_wgpu::Scope, at| {
            scope.upload(&uploads, &Unpooled(&target), at, &[1; 4096])
        };
        upload(&mut scope, 0).unwrap();
        upload(&mut scope, 4 * KIB).unwrap();
        let refused = upload(&mut scope, 8 * KIB).unwrap_err();
        assert_eq!((refused.why, refused.code), (Why::Limit(Limit::Device), 8 << 10));
        for named in ["open scopes", "`InFlight::Wait`", "8192", "program"] {
            assert!(refused.to_string().contains(named), "{refused}");
        }
        scope.flush().unwrap();
        upload(&mut scope, 8 * KIB).unwrap(); // waits for the copies
        scope.submit().unwrap();
    }
}

#[test]
fn m3_placed_data_is_of_its_scope() {
    for device in devices() {
        let data = device.frame_data(BufferUsages::COPY_SRC, 4 * KIB, 4 * KIB).unwrap();
        let backs = device.read_backs(MIB);
        let (mut one, mut two) = (device.scope(), device.scope());
        let placed = one.place(&data, &[1; 64]).unwrap();
        assert_eq!(two.read_back(&backs, &placed, 0, 64).unwrap_err().why, Why::Foreign);
        one.submit().unwrap();
        let layout = device.device().create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[],
        });
        assert_eq!(device.bind_group(&layout, &[(0, &placed)]).unwrap_err().why, Why::Foreign);
    }
}

#[test]
fn m9_a_chunk_of_an_open_prologue_does_not_stop_those_behind_it() {
    for device in devices() {
        let uploads = device.bounded_uploads(4 * KIB, MIB, InFlight::Wait(8 * KIB));
        let target = own(&device, 16 * KIB);
        let mut first = device.scope();
        first.upload(&uploads, &Unpooled(&target), 0, &[1; 4096]).unwrap();
        let descriptor = wgpu::CommandEncoderDescriptor::default();
        let mut encoder = device.device().create_command_encoder(&descriptor);
        let prologue = first.prologue(&mut encoder).unwrap(); // not submitted yet
        for _ in 0..5 {
            let mut scope = device.scope();
            scope.upload(&uploads, &Unpooled(&target), 0, &[2; 4096]).unwrap();
            scope.submit().unwrap();
        }
        let large = device.scope().upload(&uploads, &Unpooled(&target), 0, &[2; 12 << 10]);
        let call = "a chunk of staging memory larger than its `InFlight` (the code)";
        assert_eq!(large.unwrap_err().call, call);
        drop((prologue, encoder));
    }
}

#[test]
fn the_adapter_tells_how_much_memory_there_is() {
    assert_eq!(noop().total_bytes(), None);
    let Some(device) = vulkan() else { return };
    let total = device.total_bytes().unwrap();
    assert!(total >= 64 * MIB, "{total}");
    assert_eq!(WgpuSlabs::<ReadWrite>::new(device.clone()).total_bytes(), Some(total));
    let fraction = 8.0 * MIB as f64 / total as f64;
    let pool = BucketPool::builder(device).memory_fraction(fraction).build();
    let _held = pool.allocate(4 * MIB).unwrap();
    assert_eq!(pool.allocate(8 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
}

#[test]
fn a_binding_is_checked_against_the_devices_limits() {
    let max_uniform_buffer_binding_size = 16 * KIB;
    let required_limits =
        wgpu::Limits { max_uniform_buffer_binding_size, ..wgpu::Limits::defaults() };
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
    let (device, queue) = wgpu::Device::noop(&descriptor);
    let pool = uncleared(&WgpuAllocator::new(device, queue));
    let scope = pool.allocator().scope();
    let on = scope.stream();
    let uniform = pool_wgpu::Usage::new(BufferUsages::UNIFORM);
    let buffer = pool.allocate_kind(&on, 16 * KIB, uniform).unwrap();
    assert!(buffer.on(&on).unwrap().binding().is_ok());
    let buffer = pool.allocate_kind(&on, 17 * KIB, uniform).unwrap();
    let refused = buffer.on(&on).unwrap().binding().unwrap_err();
    assert_eq!((refused.why, refused.code), (Why::TooLarge, 16 << 10));
}

#[test]
fn labels_are_kept_in_every_build() {
    let Some(device) = vulkan() else { return };
    let device = device.labelled("particles");
    let pool = BucketPool::new(device.clone());
    let _held = pool.allocate(KIB).unwrap();
    let Some(report) = device.device().generate_allocator_report() else { return };
    let named = |name: &str| name.starts_with("particles ") && name.ends_with(": 1024 bytes");
    let names: Vec<_> = report.allocations.iter().map(|held| held.name.as_str()).collect();
    assert!(names.iter().any(|name| named(name)), "{names:?}");
}

#[test]
fn eager_uploads_are_measured_on_the_device() {
    for device in devices() {
        assert!(device.eager_uploads_pay().is_ok());
    }
    let device = noop();
    device.mark_lost();
    assert_eq!(device.eager_uploads_pay().unwrap_err().why, Why::Lost);
}

#[test]
fn marks_of_a_scope_are_in_the_order_of_its_steps() {
    let device = noop();
    let mut scope = device.scope();
    let (clock, on) = (device.clock().clone(), scope.stream());
    let first = clock.mark(&on);
    let _ = scope.encoder();
    scope.end_step();
    let second = clock.mark(&on);
    assert!(clock.is_later(second, first) && !clock.is_later(first, second));
    assert_eq!((clock.later(first, second), clock.latest(first)), (second, second));
    let ahead = clock.ahead_of(&on);
    assert!(clock.is_ordered(&ahead, first) && !clock.is_ordered(&ahead, second));
    scope.flush().unwrap();
    assert!(clock.is_submitted(second) && !clock.is_submitted(clock.mark(&on)));
}
