//! Frames that overlap: what one of them may still read serves no other.

use crate::present::{devices, noop, uncleared};
use crate::{encoder, own, shown};
use pool_core::{BucketPool, KIB, MIB};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use wgpu::{
    Extent3d, TexelCopyBufferLayout, TextureDescriptor, TextureDimension, TextureFormat,
    TextureUsages,
};

/// The pool has not heard of the submission of the frame that the buffer is of.
#[test]
fn a_buffer_of_a_frame_that_was_handed_over_serves_no_frame_that_is_open() {
    for device in devices() {
        for told in [false, true] {
            let pool = BucketPool::new(device.clone());
            let uploads = device.uploads(KIB, MIB);
            let (mut first, mut commands) = (device.scope(), encoder(&device));
            let on = first.stream();
            let history = first.take(&pool, KIB).unwrap();
            let raw = first.lend(&history).unwrap();
            let view = history.on(&on).unwrap();
            first.upload_in(&mut commands, &uploads, &view, 0, &[1; 1024]).unwrap();
            drop(view);
            let (second, mut later) = (device.scope(), encoder(&device));
            let prologue = first.prologue(&mut commands).unwrap();
            device.queue().submit(prologue.into_iter().chain([commands.finish()]));
            if told {
                device.submitted(&on);
            }
            let target = own(&device, KIB);
            later.copy_buffer_to_buffer(&raw, 0, &target, 0, KIB);
            drop((history, raw));
            let mut third = device.scope();
            let other = third.take(&pool, KIB).unwrap();
            third.upload(&uploads, &other.on(&third.stream()).unwrap(), 0, &[2; 1024]).unwrap();
            third.submit().unwrap();
            second.submit_with(later).unwrap();
            assert_eq!(shown(&device, &target), Some(1), "told: {told}");
            assert_eq!(device.faults(), []);
        }
    }
}

const SIZE: Extent3d = Extent3d { width: 16, height: 16, depth_or_array_layers: 1 };

fn described() -> TextureDescriptor<'static> {
    TextureDescriptor {
        label: None,
        size: SIZE,
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format: TextureFormat::R32Uint,
        usage: TextureUsages::COPY_SRC | TextureUsages::COPY_DST,
        view_formats: &[],
    }
}

/// How a second frame reads the texture of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// By its own commands, which the pool sees.
    InItsEncoder,
    /// By the scope's encoder.
    InTheScope,
    /// By commands that the pool does not see, in a frame that is older than the texture's.
    Older,
    /// The same, once the texture's frame was handed over.
    HandedOver,
}

#[test]
fn a_texture_that_a_second_frame_reads_serves_no_third() {
    let layout = TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(64), rows_per_image: None };
    for device in devices() {
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        for reads in [Reads::InItsEncoder, Reads::InTheScope, Reads::Older, Reads::HandedOver] {
            let textures = device.textures();
            let older = device.scope();
            let (mut first, mut drawn) = (device.scope(), encoder(&device));
            let on = first.stream();
            let history = first.take_texture(&textures, &described()).unwrap();
            let place = history.as_image_copy();
            let data = (&[1; 1024][..], layout);
            first.upload_texture_in(&mut drawn, &uploads, place, data, SIZE).unwrap();
            let younger = device.scope();
            let mut second = if reads == Reads::Older { older } else { younger };
            let mut read = encoder(&device);
            let mut prologue = None;
            let mut first = Some(first);
            if reads == Reads::HandedOver {
                prologue = first.take().unwrap().prologue(&mut drawn).unwrap();
            }
            let back = match reads {
                Reads::InTheScope => {
                    let _ = second.encoder();
                    second.read_back_texture(&backs, place, SIZE)
                }
                _ => second.read_back_texture_in(&mut read, &backs, place, SIZE),
            };
            let texture = (*history).clone();
            drop(history);
            if let Some(first) = first {
                first.submit_with(drawn).unwrap();
            } else {
                device.queue().submit(prologue.into_iter().chain([drawn.finish()]));
                device.submitted(&on);
            }
            let (mut third, mut commands) = (device.scope(), encoder(&device));
            let next = third.take_texture(&textures, &described()).unwrap();
            let place = next.as_image_copy();
            let data = (&[3; 1024][..], layout);
            third.upload_texture_in(&mut commands, &uploads, place, data, SIZE).unwrap();
            third.submit_with(commands).unwrap();
            assert_ne!(*next, texture, "{reads:?}: the second frame may read it still");
            match reads {
                Reads::InTheScope => drop(second.submit().unwrap()),
                _ => drop(second.submit_with(read).unwrap()),
            }
            // The device of wgpu's tests copies no texels.
            if device.device().adapter_info().backend != wgpu::Backend::Noop {
                assert_eq!(back.unwrap().wait(|bytes| bytes[0]), Ok(1), "{reads:?}");
            }
        }
        assert_eq!(device.faults(), []);
    }
}

/// A loader's thread drops a mesh while the frame that draws it takes temporaries.
#[test]
fn a_mesh_that_another_thread_drops_is_under_no_upload_of_the_frame_that_draws_it() {
    let device = noop();
    let pool = uncleared(&device);
    let (slot, stop) = (Mutex::new(None), AtomicBool::new(false));
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|threads| {
        threads.spawn(|| {
            for frame in 0.. {
                begin.wait();
                if stop.load(SeqCst) {
                    break;
                }
                for _ in 0..frame % 61 * 3 {
                    std::hint::spin_loop();
                }
                let mesh = slot.lock().unwrap().take();
                drop(mesh);
                end.wait();
            }
        });
        let mut same = 0;
        for _ in 0..20_000 {
            let scope = device.scope();
            let mesh = scope.take(&pool, KIB).unwrap();
            let raw = scope.lend(&mesh).unwrap();
            scope.submit_with(encoder(&device)).unwrap();
            *slot.lock().unwrap() = Some(mesh);
            // This frame draws it by the clone.
            let scope = device.scope();
            begin.wait();
            let taken: Vec<_> = (0..3).map(|_| scope.take(&pool, KIB).unwrap()).collect();
            let on = scope.stream();
            let is_mesh = |taken: &crate::Pooled| *taken.on(&on).unwrap().buffer().unwrap() == raw;
            same += u32::from(taken.iter().any(is_mesh));
            end.wait();
            drop(taken);
            scope.submit_with(encoder(&device)).unwrap();
        }
        stop.store(true, SeqCst);
        begin.wait();
        assert_eq!(same, 0, "a temporary is the mesh that the frame draws");
    });
}
