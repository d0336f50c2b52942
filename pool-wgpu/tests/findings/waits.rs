//! What the pool waits for: each wait ends.

use crate::present::devices;
use crate::{encoder, own};
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_wgpu::{InFlight, Unpooled, WgpuAllocator};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use wgpu::{Buffer, BufferDescriptor, BufferUsages, MapMode, PollType};

/// Only a test that fails waits for as long.
const HANGS: Duration = Duration::from_mins(1);

fn mappable(device: &WgpuAllocator) -> Buffer {
    device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: 64,
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// wgpu calls the callbacks of a submission one after the other, so the one that brings the read-back runs
/// behind the one that waits for it.
#[test]
fn a_wait_inside_of_a_callback_of_the_same_submission_ends() {
    for device in devices() {
        let (tell, ended) = channel();
        thread::spawn(move || {
            let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
            let mapped = mappable(&device);
            let mut scope = device.scope();
            let slot = Arc::new(Mutex::new(None));
            let taken = slot.clone();
            scope.encoder().copy_buffer_to_buffer(&source, 0, &mapped, 0, 64);
            scope.encoder().map_buffer_on_submit(&mapped, MapMode::Read, .., move |_| {
                let back: Option<pool_wgpu::ReadBack> = taken.lock().unwrap().take();
                let back = back.unwrap();
                let waited = back.wait(<[u8]>::len).map_err(|error| error.why);
                tell.send((waited, back)).unwrap();
            });
            let back = scope.read_back(&backs, &Unpooled(&source), 0, KIB).unwrap();
            *slot.lock().unwrap() = Some(back);
            scope.submit().unwrap();
            device.device().poll(PollType::wait_indefinitely()).unwrap();
            device
        });
        let (waited, back) = ended.recv_timeout(HANGS).expect("the wait hangs");
        assert_eq!(waited, Err(Why::NotSubmitted));
        assert_eq!(back.wait(<[u8]>::len), Ok(1024), "behind the callback it comes");
    }
}

#[test]
fn an_upload_at_its_bound_inside_of_a_callback_ends() {
    for device in devices() {
        let (tell, ended) = channel();
        thread::spawn(move || {
            let target = own(&device, 4 * KIB);
            let uploads = device.bounded_uploads(4 * KIB, MIB, InFlight::Wait(4 * KIB));
            let mapped = mappable(&device);
            let mut scope = device.scope();
            scope.encoder().clear_buffer(&mapped, 0, None);
            let (inside, place, through) = (device.clone(), target.clone(), uploads.clone());
            scope.encoder().map_buffer_on_submit(&mapped, MapMode::Read, .., move |_| {
                let mut scope = inside.scope();
                let upload = scope.upload(&through, &Unpooled(&place), 0, &[2; 4096]);
                tell.send(upload.map_err(|error| error.why)).unwrap();
            });
            scope.upload(&uploads, &Unpooled(&target), 0, &[1; 4096]).unwrap();
            scope.submit().unwrap();
            device.device().poll(PollType::wait_indefinitely()).unwrap();
        });
        let upload = ended.recv_timeout(HANGS).expect("the upload hangs");
        assert!(matches!(upload, Ok(()) | Err(Why::Limit(_))), "{upload:?}");
    }
}

/// The poll of another thread has taken the word of the submission, and is in a callback before it.
#[test]
fn a_use_behind_a_submission_needs_no_callback() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let instances = pool.allocate(KIB).unwrap();
        let first = device.scope();
        let mut commands = encoder(&device);
        commands.clear_buffer(&first.lend(&instances).unwrap(), 0, None);
        let prologue = first.prologue(&mut commands).unwrap();
        let second = device.scope();
        let refused = second.lend(&instances).unwrap_err();
        assert_eq!(refused.why, Why::NotSubmitted, "the first frame is not submitted");
        // The program's callback, and the pool's behind it, in one poll of another thread.
        let (begins, began) = channel();
        let (go, gone): (_, Receiver<()>) = channel();
        let mapped = mappable(&device);
        let slow = encoder(&device);
        slow.map_buffer_on_submit(&mapped, MapMode::Read, .., move |_| {
            begins.send(()).unwrap();
            let _ = gone.recv_timeout(HANGS);
        });
        let all: Vec<_> =
            [slow.finish()].into_iter().chain(prologue).chain([commands.finish()]).collect();
        let (raw, queue) = (device.device().clone(), device.queue().clone());
        let submits = thread::spawn(move || {
            queue.submit(all);
            let _ = raw.poll(PollType::wait_indefinitely());
        });
        began.recv_timeout(HANGS).unwrap();
        let lent = second.lend(&instances).map(drop);
        assert_eq!(lent, Ok(()), "the first frame is submitted");
        go.send(()).unwrap();
        submits.join().unwrap();
        second.submit_with(encoder(&device)).unwrap();
        assert_eq!(device.faults(), []);
    }
}

struct Flag(AtomicBool);

fn poll<F: Future>(task: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    task.poll(&mut Context::from_waker(waker))
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// An executor that makes a waker for each poll.
#[test]
fn a_read_back_keeps_the_newest_waker() {
    for device in devices() {
        let (source, backs) = (own(&device, KIB), device.read_backs(MIB));
        let (mut scope, mut commands) = (device.scope(), encoder(&device));
        let from = Unpooled(&source);
        let mut first = scope.read_back_in(&mut commands, &backs, &from, 0, 0).unwrap();
        let mut second = scope.read_back_in(&mut commands, &backs, &from, 0, 64).unwrap();
        let flags: Vec<_> = (0..100).map(|_| Arc::new(Flag(AtomicBool::new(false)))).collect();
        for flag in &flags {
            for back in [&mut first, &mut second] {
                let waker = Waker::from(flag.clone());
                assert!(poll(Pin::new(back), &waker).is_pending());
            }
        }
        let kept = flags.iter().filter(|flag| Arc::strong_count(flag) > 1).count();
        assert_eq!(kept, 1, "of 100 wakers, each of two read-backs'");
        scope.submit_with(commands).unwrap();
        device.device().poll(PollType::wait_indefinitely()).unwrap();
        assert!(flags[99].0.load(SeqCst), "the newest is woken");
    }
}

/// A task of the frame loop's own thread: nobody else frees anything.
#[test]
fn a_task_that_waits_behind_a_frame_is_woken_by_its_submission() {
    for device in devices() {
        for with_prologue in [false, true] {
            let pool = BucketPool::builder(device.clone()).reserved_limit(64 * KIB).build();
            let first = device.scope();
            let held = first.take(&pool, 64 * KIB).unwrap();
            let mut commands = encoder(&device);
            commands.clear_buffer(&first.lend(&held).unwrap(), 0, None);
            drop(held);
            let second = device.scope();
            let on = second.stream();
            let mut task = pin!(pool.allocate_async_on(&on, 64 * KIB));
            let flag = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(flag.clone());
            let mut waits = false;
            for _ in 0..10_000 {
                flag.0.store(false, SeqCst);
                assert!(poll(task.as_mut(), &waker).is_pending());
                waits = !flag.0.load(SeqCst);
                if waits {
                    break;
                }
            }
            assert!(waits, "the task sleeps until it is called");
            if with_prologue {
                let prologue = first.prologue(&mut commands).unwrap();
                device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                device.device().poll(PollType::wait_indefinitely()).unwrap();
            } else {
                first.submit_with(commands).unwrap();
            }
            assert!(flag.0.load(SeqCst), "woken; with a prologue: {with_prologue}");
            match poll(task.as_mut(), &waker) {
                Poll::Ready(taken) => drop(taken.unwrap()),
                Poll::Pending => panic!("it was called and finds nothing"),
            }
        }
    }
}
