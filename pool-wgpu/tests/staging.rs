//! Uploads, placed data and read-back: on the noop backend, and on a Vulkan device where there is
//! one.
#![expect(clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::{Unpooled, Usage};
use present::{devices, noop, uncleared};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use wgpu::{BufferUsages, PollType};

fn pattern(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| seed.wrapping_add(at.to_le_bytes()[0])).collect()
}

#[test]
fn what_is_uploaded_is_read_back() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(256 * KIB, 4 * MIB), device.read_backs(4 * MIB));
        let pool = uncleared(&device);
        for frame in 0..10_u8 {
            let mut scope = device.scope();
            let on = scope.stream();
            let mut expected = Vec::new();
            for part in 0..16_u8 {
                let data = pattern(frame.wrapping_mul(16).wrapping_add(part), 64 * KIB);
                let buffer = pool.allocate_on(&on, 64 * KIB).unwrap();
                let view = buffer.on(&on).unwrap();
                scope.upload(&uploads, &view, 0, &data).unwrap();
                let back = scope.read_back(&backs, &view, 4, 64 * KIB - 7).unwrap();
                expected.push((data, back));
            }
            scope.submit().unwrap();
            for (data, back) in expected {
                let same = back.wait(|shown| shown == &data[4..data.len() - 3]).unwrap();
                assert!(same, "frame {frame}");
            }
        }
        assert_eq!(pool.stats().misses, 1, "one buffer, in the order of each scope");
        assert!(uploads.reserved_bytes() <= 4 * MIB, "{uploads:?}");
        assert!(backs.reserved_bytes() <= 2 * MIB, "chunks serve again: {backs:?}");
    }
}

#[test]
fn uploads_of_neighbours_keep_their_order_among_other_commands() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        let pool = uncleared(&device);
        let mut scope = device.scope();
        let on = scope.stream();
        let (a, b) = (pool.allocate_on(&on, KIB).unwrap(), pool.allocate_on(&on, KIB).unwrap());
        let (a, b) = (a.on(&on).unwrap(), b.on(&on).unwrap());
        for part in 0..4_u8 {
            let at = u64::from(part) * 256;
            scope.upload(&uploads, &a, at, &[part; 256]).unwrap(); // one copy
        }
        scope.copy((&a, 0), (&b, 0), KIB).unwrap(); // behind it
        scope.upload(&uploads, &a, 0, &[9; 256]).unwrap(); // and this behind that
        scope.upload(&uploads, &b, 256, &[7; 256]).unwrap();
        let in_a = scope.read_back(&backs, &a, 0, KIB).unwrap();
        let in_b = scope.read_back(&backs, &b, 0, KIB).unwrap();
        scope.submit().unwrap();
        let quarters = |shown: &[u8]| -> Vec<u8> { shown.chunks(256).map(|c| c[255]).collect() };
        assert_eq!(in_a.wait(quarters).unwrap(), [9, 1, 2, 3]);
        assert_eq!(in_b.wait(quarters).unwrap(), [0, 7, 2, 3]);
    }
}

#[test]
fn placed_data_is_read_where_it_lies() {
    let plain = noop().frame_data(BufferUsages::UNIFORM, KIB, MIB);
    assert_eq!(plain.unwrap_err().why, Why::Unsupported, "requested without the feature");
    for device in devices() {
        let Ok(data) = device.frame_data(BufferUsages::COPY_SRC, 4 * KIB, MIB) else { continue };
        let backs = device.read_backs(MIB);
        for frame in 0..5_u8 {
            let mut scope = device.scope();
            let mut placed = Vec::new();
            for part in 0..40_u64 {
                // Odd lengths too, and one that is larger than a chunk.
                let bytes = pattern(frame, if part == 20 { 4 * KIB + 1 } else { part * 7 });
                let at = scope.place(&data, &bytes).unwrap();
                let back = scope.read_back(&backs, &at, 0, bytes.len() as u64).unwrap();
                placed.push((bytes, back));
            }
            scope.submit().unwrap();
            for (bytes, back) in placed {
                assert!(back.wait(|shown| shown == bytes).unwrap(), "frame {frame}");
            }
        }
    }
}

#[test]
fn staging_memory_stays_within_what_is_kept() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::builder(device.clone()).cached_limit(MIB).build();
        for frame in 0..30_u64 {
            let bytes = (frame * 7 % 11 + 1) * 128 * KIB;
            let mut scope = device.scope();
            let on = scope.stream();
            let buffer = pool.allocate_on(&on, bytes).unwrap();
            let view = buffer.on(&on).unwrap();
            scope.upload(&uploads, &view, 0, &pattern(1, bytes)).unwrap();
            let back = scope.read_back(&backs, &view, 0, bytes).unwrap();
            scope.submit().unwrap();
            assert!(back.wait(|shown| shown == pattern(1, bytes)).unwrap());
            assert!(pool.stats().cached_bytes <= MIB);
        }
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(uploads.reserved_bytes() <= MIB + 11 * 128 * KIB, "{uploads:?}");
        assert!(backs.reserved_bytes() <= MIB + 2 * MIB, "{backs:?}");
    }
}

/// Counts its wakes.
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_read_back_can_be_awaited() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::new(device.clone());
        let mut scope = device.scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let view = buffer.on(&on).unwrap();
        scope.upload(&uploads, &view, 0, &[9; 1024]).unwrap();
        let back = scope.read_back(&backs, &view, 0, KIB).unwrap();
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut back = pin!(back);
        assert!(back.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        scope.submit().unwrap();
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert_eq!(woken.0.load(Relaxed), 1);
        assert!(matches!(
            back.as_mut().poll(&mut Context::from_waker(&waker)),
            Poll::Ready(Ok(()))
        ));
    }
}

#[test]
fn bad_uploads_and_read_backs_say_what_is_wrong() {
    let (device, other) = (noop(), noop());
    let (uploads, backs) = (device.uploads(KIB, MIB), device.read_backs(MIB));
    let pool = BucketPool::new(device.clone());
    let mut scope = device.scope();
    let on = scope.stream();
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    let view = buffer.on(&on).unwrap();
    let to = &view;
    let bad = [
        (2, 4, "upload: an offset or a length is no multiple of a word: 2 B"),
        (
            0,
            5,
            "write a part of a word, other than at the end of a buffer: \
             an offset or a length is no multiple of a word: 5 B",
        ),
        (1000, 100, "upload: beyond the end, at byte 1100"),
        (u64::MAX - 3, 4, "upload: beyond the end, at byte 9223372036854775807"),
    ];
    for (offset, data, text) in bad {
        let error = scope.upload(&uploads, to, offset, &vec![0; data]).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    assert!(scope.upload(&uploads, to, 0, &[]).is_ok());
    let foreign = scope.upload(&other.uploads(KIB, MIB), to, 0, &[0; 4]).unwrap_err();
    assert_eq!(foreign.why, Why::Foreign);
    assert_eq!(scope.read_back(&backs, to, 1000, 100).unwrap_err().why, Why::OutOfRange);
    let same = scope.copy((to, 0), (to, 512), 16).unwrap_err();
    assert_eq!(
        (same.why, same.call),
        (Why::Unsupported, "copy inside of one wgpu buffer: take blocks of two pools",)
    );
    let early = scope.read_back(&backs, to, 0, 16).unwrap();
    assert_eq!(early.lend(|_| ()).unwrap_err().why, Why::NotSubmitted);
    let early = scope.read_back(&backs, to, 0, 16).unwrap();
    assert_eq!(early.wait(|_| ()).unwrap_err().why, Why::NotSubmitted, "an open scope");
    let dropped = scope.read_back(&backs, to, 0, 16).unwrap();
    let mut awaited = pin!(scope.read_back(&backs, to, 0, 16).unwrap());
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    assert!(awaited.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let read_only = pool.allocate_kind(&on, KIB, Usage::new(BufferUsages::UNIFORM)).unwrap();
    let read_only = read_only.on(&on).unwrap();
    assert_eq!(scope.read_back(&backs, &read_only, 0, 16).unwrap_err().why, Why::Unsupported);
    drop(scope);
    let end = awaited.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(end, Poll::Ready(Err(error)) if error.why == Why::NotSubmitted));
    assert_eq!(woken.0.load(Relaxed), 1, "whoever waits is told");
    assert_eq!(dropped.wait(|_| ()).unwrap_err().why, Why::NotSubmitted, "a dropped scope");
    assert_eq!(backs.reserved_bytes(), KIB, "all share a chunk");
}

#[test]
fn a_flushed_scope_goes_on_with_its_blocks() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        let pool = uncleared(&device);
        let mut scope = device.scope();
        let _ = scope.encoder(); // so that no other encoder is thought to use the buffer
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let view = buffer.on(&on).unwrap();
        scope.upload(&uploads, &view, 0, &[1; 1024]).unwrap();
        let first = scope.read_back(&backs, &view, 0, KIB).unwrap();
        scope.flush().unwrap();
        assert!(first.wait(|shown| shown == [1; 1024]).unwrap(), "before the scope's end");
        let raw = view.buffer().unwrap().clone();
        drop(view);
        drop(buffer);
        let another = pool.allocate(KIB).unwrap();
        assert_eq!(pool.stats().misses, 2, "the block is the open scope's still");
        let _ = scope.encoder(); // anew, so that no pass of it is open
        let again = pool.allocate_on(&on, KIB).unwrap();
        assert_eq!(*again.on(&on).unwrap().buffer().unwrap(), raw, "and serves it");
        scope.upload(&uploads, &Unpooled(&raw), 0, &[2; 512]).unwrap();
        let second = scope.read_back(&backs, &Unpooled(&raw), 0, KIB).unwrap();
        scope.submit().unwrap();
        let halves = |shown: &[u8]| (shown[0], shown[511], shown[512], shown[1023]);
        assert_eq!(second.wait(halves).unwrap(), (2, 2, 1, 1));
        drop(another);
    }
}

#[test]
fn what_was_flushed_ran_though_its_scope_is_dropped() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        let pool = uncleared(&device);
        let buffer = pool.allocate(KIB).unwrap();
        for turn in 0..5 {
            let mut scope = device.scope();
            let on = scope.stream();
            let view = buffer.on(&on).unwrap();
            scope.upload(&uploads, &view, 0, &[turn; 1024]).unwrap();
            scope.flush().unwrap();
            scope.upload(&uploads, &view, 0, &[9; 1024]).unwrap();
            drop(view);
            drop(scope);
            let mut scope = device.scope();
            let on = scope.stream();
            let view = buffer.on(&on).unwrap();
            let back = scope.read_back(&backs, &view, 0, KIB).unwrap();
            scope.submit().unwrap();
            assert!(back.wait(|shown| shown == [turn; 1024]).unwrap());
        }
        assert!(uploads.reserved_bytes() <= 8 * KIB, "chunks of dropped scopes serve again");
    }
}

#[test]
fn eager_uploads_hand_each_full_chunk_over() {
    for device in devices() {
        let (uploads, backs) = (device.uploads(4 * KIB, MIB), device.read_backs(MIB));
        let pool = uncleared(&device);
        for frame in 0..10_u8 {
            let mut scope = device.scope();
            scope.upload_eagerly();
            let on = scope.stream();
            let buffer = pool.allocate_on(&on, 64 * KIB).unwrap();
            let view = buffer.on(&on).unwrap();
            // A whole chunk, parts of one, and more than one holds.
            let mut data = Vec::new();
            let mut first = None;
            for (part, bytes) in [4096, 400, 3696, 4, 5000, 4092, 4096, 36].into_iter().enumerate()
            {
                let part = pattern(frame.wrapping_add(u8::try_from(part).unwrap()), bytes);
                scope.upload(&uploads, &view, data.len() as u64, &part).unwrap();
                data.extend(part);
                if first.is_none() {
                    first = Some(scope.read_back(&backs, &view, 0, 16).unwrap());
                }
            }
            let early = first.unwrap().wait(|shown| shown == &data[..16]);
            assert!(early.unwrap(), "the device has the first chunk by now");
            let back = scope.read_back(&backs, &view, 0, data.len() as u64).unwrap();
            scope.submit().unwrap();
            assert!(back.wait(|shown| shown == data).unwrap(), "frame {frame}");
        }
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(uploads.reserved_bytes() < 64 * KIB, "{uploads:?}");
    }
}

#[test]
fn placed_data_outlives_a_flush() {
    for device in devices() {
        let Ok(data) = device.frame_data(BufferUsages::COPY_SRC, 4 * KIB, MIB) else { continue };
        let backs = device.read_backs(MIB);
        for frame in 0..5 {
            let mut scope = device.scope();
            let placed = scope.place(&data, &pattern(frame, 1024)).unwrap();
            scope.flush().unwrap();
            // Were it mapped again by now, wgpu would refuse the copy.
            device.device().poll(PollType::wait_indefinitely()).unwrap();
            let back = scope.read_back(&backs, &placed, 0, 1024).unwrap();
            scope.submit().unwrap();
            assert!(back.wait(|shown| shown == pattern(frame, 1024)).unwrap(), "frame {frame}");
        }
        assert!(data.reserved_bytes() <= 8 * KIB, "chunks serve again: {data:?}");
    }
}

#[test]
fn a_chunk_larger_than_what_is_kept_serves_whoever_asks_next() {
    for device in devices() {
        let Ok(data) = device.frame_data(BufferUsages::COPY_SRC, 4 * KIB, KIB) else { continue };
        let mut buffers = Vec::new();
        for _ in 0..5 {
            let mut scope = device.scope();
            buffers.push(scope.place(&data, &[1; 64]).unwrap().buffer().clone());
            scope.submit().unwrap();
            device.device().poll(PollType::wait_indefinitely()).unwrap();
        }
        assert!(buffers.iter().all(|buffer| *buffer == buffers[0]), "{buffers:?}");
        assert_eq!(data.reserved_bytes(), 0, "and goes when somebody looks");
    }
}
