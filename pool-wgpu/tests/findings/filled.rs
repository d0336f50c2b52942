//! Buffers that a frame fills are not zeroed, and show nothing of another owner if it does not run.

use crate::present::{devices, noop};
use crate::{Pooled, encoder, own, shown};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, Why, ZeroPolicy,
};
use pool_wgpu::{
    BufferPart, ReadWrite, Role, Scope, Scopes, Unpooled, Usage, WgpuAllocator, WgpuSlabs,
};
use std::sync::Arc;
use wgpu::BufferUsages;

/// A pool with one block that is full of sevens.
fn dirty<A>(device: &WgpuAllocator, pool: &BucketPool<A>)
where
    A: DeviceAllocator<Clock = Scopes>,
    for<'b> A::View<'b>: BufferPart,
{
    let uploads = device.uploads(64 * KIB, MIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let buffer = scope.take(pool, KIB).unwrap();
    scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[7; 1024]).unwrap();
    scope.submit().unwrap();
}

/// What the first KiB of a pooled buffer shows.
fn seen<A>(device: &WgpuAllocator, buffer: &PooledBuffer<A>) -> Vec<u8>
where
    A: DeviceAllocator<Clock = Scopes>,
    for<'b> A::View<'b>: BufferPart,
{
    let backs = device.read_backs(MIB);
    let mut scope = device.scope();
    let on = scope.stream();
    let bytes = buffer.size().next_multiple_of(4);
    let back = scope.read_back(&backs, &buffer.on(&on).unwrap(), 0, bytes).unwrap();
    scope.submit().unwrap();
    back.wait(<[u8]>::to_vec).unwrap()
}

/// A role that this crate does not know.
#[derive(Debug)]
enum Tensors {}

impl Role for Tensors {
    const USAGES: BufferUsages =
        BufferUsages::STORAGE.union(BufferUsages::INDIRECT).union(BufferUsages::COPY_SRC);
}

/// How a frame ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Dropped,
    Refused,
    Prologue,
    PrologueWithoutCommands,
    Submitted,
}

const ENDS: [Ends; 5] =
    [Ends::Dropped, Ends::Refused, Ends::Prologue, Ends::PrologueWithoutCommands, Ends::Submitted];

/// Ends a frame whose commands do not fill anything. Returns whether they ran.
fn end(device: &WgpuAllocator, scope: Scope, ends: Ends) -> bool {
    let mut commands = encoder(device);
    match ends {
        Ends::Dropped => drop(scope),
        Ends::Refused => {
            let gone = own(device, KIB);
            commands.clear_buffer(&gone, 0, None);
            gone.destroy();
            assert_eq!(scope.submit_with(commands).unwrap_err().why, Why::NotSubmitted);
        }
        Ends::Prologue => {
            let prologue = scope.prologue(&mut commands).unwrap();
            device.queue().submit(prologue.into_iter().chain([commands.finish()]));
        }
        Ends::PrologueWithoutCommands => {
            let prologue = scope.prologue(&mut commands).unwrap();
            device.queue().submit(prologue);
            drop(commands);
        }
        Ends::Submitted => drop(scope.submit_with(commands).unwrap()),
    }
    matches!(ends, Ends::Prologue | Ends::Submitted)
}

fn shows_another_only_if_its_frame_ran<A>(device: &WgpuAllocator, pool: &BucketPool<A>, ends: Ends)
where
    A: DeviceAllocator<Clock = Scopes>,
    for<'b> A::View<'b>: BufferPart,
{
    dirty(device, pool);
    let scope = device.scope();
    let taken = scope.take_to_fill(pool, KIB).unwrap();
    assert!(pool.stats().hits > 0);
    let ran = end(device, scope, ends);
    // The program broke its promise where the frame ran.
    let expected = if ran { 7 } else { 0 };
    assert_eq!(seen(device, &taken), [expected; 1024], "{ends:?}");
}

#[test]
fn what_a_frame_fills_is_zeroed_only_if_the_frame_did_not_run() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        for ends in ENDS {
            shows_another_only_if_its_frame_ran(&device, &BucketPool::new(device.clone()), ends);
            let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
            let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
            shows_another_only_if_its_frame_ran(&device, &pool, ends);
            let slabs = WgpuSlabs::<Tensors>::new(device.clone());
            let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
            shows_another_only_if_its_frame_ran(&device, &pool, ends);
        }
    }
}

/// Nothing runs ahead of a frame that fills what it takes: no clear, no prologue.
#[test]
fn what_a_frame_fills_costs_no_clear() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let slabs = WgpuSlabs::<Tensors>::new(device.clone());
        let pieces = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
        let usages = BufferUsages::VERTEX | BufferUsages::INDIRECT;
        for frame in 0..3 {
            let scope = device.scope();
            let taken = scope.take_to_fill(&pool, KIB).unwrap();
            let kind = scope.take_kind_to_fill(&pool, KIB, usages).unwrap();
            let piece = scope.take_to_fill(&pieces, KIB).unwrap();
            assert!(kind.kind().flags().contains(usages));
            let mut commands = encoder(&device);
            assert!(scope.prologue(&mut commands).unwrap().is_none(), "frame {frame}");
            device.queue().submit([commands.finish()]);
            drop((taken, kind, piece));
            // Zeroed ones do cost one.
            let scope = device.scope();
            let taken = (scope.take(&pool, KIB).unwrap(), scope.take(&pieces, KIB).unwrap());
            let mut commands = encoder(&device);
            assert!(scope.prologue(&mut commands).unwrap().is_some(), "frame {frame}");
            drop(taken);
        }
        assert!(pool.stats().misses <= 3, "{}", pool.stats());
    }
}

/// The rest of a block that is larger than the request belongs to nobody.
#[test]
fn the_rest_of_a_larger_block_is_zeroed() {
    for device in devices() {
        let policy = BucketPolicy::PowerOfTwo;
        let pool = BucketPool::builder(device.clone()).policy(policy).build();
        dirty(&device, &pool);
        let scope = device.scope();
        let taken = scope.take_to_fill(&pool, 601).unwrap();
        assert_eq!((taken.allocated_size(), pool.stats().hits), (KIB, 1));
        let (raw, target) = (scope.lend(&taken).unwrap(), own(&device, KIB));
        let mut commands = encoder(&device);
        commands.copy_buffer_to_buffer(&raw, 604, &target, 0, 420);
        scope.submit_with(commands).unwrap();
        assert_eq!(shown(&device, &target), Some(0));
        assert_eq!(seen(&device, &taken), [7; 604]);
    }
}

/// An upload to the end of a request zeroes what is behind it.
#[test]
fn nothing_of_another_owner_is_behind_an_upload() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        for (ends, bytes) in ENDS.into_iter().flat_map(|ends| [(ends, 601), (ends, 1021)]) {
            let policy = BucketPolicy::PowerOfTwo;
            let pool = BucketPool::builder(device.clone()).policy(policy).build();
            dirty(&device, &pool);
            let (mut scope, uploads) = (device.scope(), device.uploads(64 * KIB, MIB));
            let taken = scope.take(&pool, bytes).unwrap();
            assert_eq!((taken.allocated_size(), pool.stats().hits), (KIB, 1));
            let data = vec![4; usize::try_from(bytes).unwrap()];
            scope.upload(&uploads, &taken, 0, &data).unwrap();
            end(&device, scope, ends);
            let (scope, target) = (device.scope(), own(&device, KIB));
            let mut commands = encoder(&device);
            let raw = scope.lend(&taken).unwrap();
            commands.copy_buffer_to_buffer(&raw, 0, &target, 0, KIB);
            scope.submit_with(commands).unwrap();
            let backs = device.read_backs(KIB);
            let mut scope = device.scope();
            let back = scope.read_back(&backs, &Unpooled(&target), 0, KIB).unwrap();
            scope.submit().unwrap();
            let mut expected = vec![0; 1024];
            if ends != Ends::Dropped {
                expected[..data.len()].fill(4);
            }
            assert!(back.wait(|shown| shown == expected).unwrap(), "{ends:?}, {bytes}");
        }
    }
}

/// Fills a part of what was taken to be filled, and a part of what was zeroed.
fn upload_parts(device: &WgpuAllocator, to_fill: bool, ends: Ends) -> Vec<u8> {
    let uploads = device.uploads(64 * KIB, MIB);
    let pool = BucketPool::new(device.clone());
    dirty(device, &pool);
    let mut scope = device.scope();
    let on = scope.stream();
    let taken: Pooled = match to_fill {
        true => scope.take_to_fill(&pool, KIB).unwrap(),
        false => scope.take(&pool, KIB).unwrap(),
    };
    for at in [256, 0] {
        scope.upload(&uploads, &taken.on(&on).unwrap(), at, &[4; 128]).unwrap();
    }
    let source = own(device, KIB);
    device.queue().write_buffer(&source, 0, &[5; 1024]);
    scope.copy((&Unpooled(&source), 0), (&taken.on(&on).unwrap(), 512), 512).unwrap();
    end(device, scope, ends);
    seen(device, &taken)
}

#[test]
fn uploads_and_copies_count_as_filled_if_they_ran() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        for (to_fill, ends) in [true, false].into_iter().flat_map(|f| ENDS.map(|ends| (f, ends))) {
            let shown = upload_parts(&device, to_fill, ends);
            let ran = matches!(ends, Ends::Prologue | Ends::Submitted);
            let copied = ends != Ends::Dropped;
            let rest = if ran && to_fill { 7 } else { 0 };
            let mut expected = vec![rest; 1024];
            if copied {
                expected[0..128].fill(4);
                expected[256..384].fill(4);
                expected[512..].fill(5);
            }
            assert_eq!(shown, expected, "to fill: {to_fill}, {ends:?}");
        }
    }
}

/// A copy that reads a buffer before it is uploaded to reads zeroes.
#[test]
fn a_copy_out_of_a_new_buffer_reads_zeroes_although_an_upload_follows() {
    for device in devices() {
        let uploads = device.uploads(64 * KIB, MIB);
        let pool = BucketPool::new(device.clone());
        dirty(&device, &pool);
        let target = own(&device, KIB);
        device.queue().write_buffer(&target, 0, &[9; 1024]);
        let mut scope = device.scope();
        let on = scope.stream();
        let taken = scope.take(&pool, KIB).unwrap();
        let view = taken.on(&on).unwrap();
        scope.copy((&view, 0), (&Unpooled(&target), 0), KIB).unwrap();
        scope.upload(&uploads, &view, 0, &[4; 1024]).unwrap();
        drop(view);
        scope.submit().unwrap();
        assert_eq!((shown(&device, &target), pool.stats().hits), (Some(0), 1));
        assert_eq!(seen(&device, &taken), [4; 1024]);
    }
}

/// In the scope's own encoder, what was filled by a flush stays as it is when the scope is dropped; what was
/// taken later is zeroed.
#[test]
fn a_flush_of_own_commands_fills_what_was_taken_before_them() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        {
            let mut scope = device.scope();
            let on = scope.stream();
            let both = [(); 2].map(|()| scope.take(&pool, KIB).unwrap());
            for buffer in &both {
                scope.upload(&uploads, &buffer.on(&on).unwrap(), 0, &[7; 1024]).unwrap();
            }
            scope.submit().unwrap();
        }
        let source = own(&device, KIB);
        device.queue().write_buffer(&source, 0, &[5; 1024]);
        let mut scope = device.scope();
        let on = scope.stream();
        let first = scope.take_to_fill(&pool, KIB).unwrap();
        let commands = scope.encoder();
        commands.copy_buffer_to_buffer(
            &source,
            0,
            first.on(&on).unwrap().buffer().unwrap(),
            0,
            KIB,
        );
        let second = scope.take_to_fill(&pool, KIB).unwrap();
        scope.end_step();
        scope.flush().unwrap();
        drop(scope);
        assert_eq!((pool.stats().hits, pool.stats().misses), (2, 2));
        assert_eq!(seen(&device, &first), [5; 1024]);
        assert_eq!(seen(&device, &second), [0; 1024]);
    }
}

/// A pool that never zeroes promises nothing.
#[test]
fn a_pool_that_never_zeroes_does_not_begin_to() {
    let device = noop();
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    dirty(&device, &pool);
    let scope = device.scope();
    let taken = scope.take_to_fill(&pool, KIB).unwrap();
    drop(scope);
    assert_eq!(seen(&device, &taken), [7; 1024]);
}

/// wgpu names a buffer once, so a name is a kind of its own.
#[test]
fn a_named_buffer_serves_its_name_again() {
    for device in devices() {
        let said = Arc::new(std::sync::Mutex::new(String::new()));
        let says = said.clone();
        device.on_refused(move |text| says.lock().unwrap().push_str(text));
        let target = own(&device, KIB);
        let pool = BucketPool::new(device.clone());
        let storage = Usage::new(BufferUsages::STORAGE);
        let names = [storage.labelled("bins"), storage.labelled("tiles"), storage];
        for round in 0..2 {
            for usage in names {
                let scope = device.scope();
                let taken = match round {
                    0 => scope.take_kind(&pool, KIB, usage).unwrap(),
                    _ => scope.take_kind_to_fill(&pool, KIB, usage).unwrap(),
                };
                assert_eq!(taken.kind().label(), usage.label());
                let mut commands = encoder(&device);
                let lent = scope.lend(&taken).unwrap();
                commands.copy_buffer_to_buffer(&lent, 0, &target, 0, KIB); // without COPY_SRC
                assert_eq!(scope.submit_with(commands).unwrap_err().why, Why::NotSubmitted);
                let text = std::mem::take(&mut *said.lock().unwrap());
                let named = format!("'{} ", usage.label().unwrap_or("bucketpool"));
                assert!(text.contains(&named), "{named} is not in {text}");
            }
        }
        assert_eq!((pool.stats().misses, pool.stats().hits), (3, 3));
    }
}

#[test]
fn elements_go_to_their_numbers() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        let mut scope = device.scope();
        let on = scope.stream();
        let [ahead, between] = [(); 2].map(|()| scope.take(&pool, 24).unwrap());
        let mut commands = encoder(&device);
        for (first, elements) in [(2, [5_u64].as_slice()), (0, &[3, 4])] {
            scope.upload_slice(&uploads, &ahead.on(&on).unwrap(), first, elements).unwrap();
            let view = between.on(&on).unwrap();
            scope.upload_slice_in(&mut commands, &uploads, &view, first, elements).unwrap();
        }
        for too_far in [3, u64::MAX / 4, u64::MAX] {
            let view = ahead.on(&on).unwrap();
            let refused = scope.upload_slice(&uploads, &view, too_far, &[0_u64]).unwrap_err();
            assert_eq!(refused.why, Why::OutOfRange);
        }
        scope.submit_with(commands).unwrap();
        let expected: Vec<u8> = [3_u64, 4, 5].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert_eq!(seen(&device, &ahead), expected);
        assert_eq!(seen(&device, &between), expected);
    }
}

/// What was taken to be filled, dropped and flushed is another's by the end of the scope, which leaves it alone.
#[test]
fn the_end_of_a_scope_does_not_zero_what_serves_another_by_then() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        dirty(&device, &pool);
        let mut scope = device.scope();
        let _ = scope.encoder();
        drop(scope.take_to_fill(&pool, KIB).unwrap());
        scope.flush().unwrap();
        let other = pool.allocate(KIB).unwrap();
        other.on(pool.default_stream()).unwrap().write(0, &[3; 1024]).unwrap();
        drop(scope);
        assert_eq!((pool.stats().misses, seen(&device, &other)), (1, vec![3; 1024]));
        drop(other);

        // Nor what serves the scope itself in its next step, whose uploads wgpu's refusal leaves.
        device.device().on_uncaptured_error(Arc::new(drop));
        let mut scope = device.scope();
        let _ = scope.encoder();
        drop(scope.take_to_fill(&pool, KIB).unwrap());
        scope.encoder().insert_debug_marker("a command");
        scope.end_step();
        let next = scope.take(&pool, KIB).unwrap();
        scope.upload(&uploads, &next, 0, &[4; 1024]).unwrap();
        end_refused(&device, scope);
        assert_eq!((pool.stats().misses, seen(&device, &next)), (1, vec![4; 1024]));
    }
}

fn end_refused(device: &WgpuAllocator, mut scope: Scope) {
    let gone = own(device, KIB);
    scope.encoder().clear_buffer(&gone, 0, None);
    gone.destroy();
    assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
}

/// An upload behind commands of the scope's own encoder is lost with them.
#[test]
fn a_part_that_was_uploaded_behind_refused_commands_shows_nothing_of_another_owner() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        let uploads = device.uploads(64 * KIB, MIB);
        let pool = BucketPool::new(device.clone());
        dirty(&device, &pool);
        let (gone, mut scope) = (own(&device, KIB), device.scope());
        let taken = scope.take_to_fill(&pool, KIB).unwrap();
        scope.encoder().clear_buffer(&gone, 0, None);
        gone.destroy();
        scope.upload(&uploads, &taken, 256, &[4; 256]).unwrap();
        assert_eq!(scope.flush().unwrap_err().why, Why::NotSubmitted);
        scope.upload(&uploads, &taken, 384, &[5; 128]).unwrap(); // comes
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
        let mut expected = vec![0; 1024];
        expected[384..512].fill(5);
        assert_eq!((seen(&device, &taken), pool.stats().hits), (expected, 1));
    }
}

/// A block that was to be filled, and was dropped instead, serves others behind a flush. The end of the scope does
/// not zero it under them.
#[test]
fn what_is_dropped_unfilled_is_not_zeroed_under_its_next_owner() {
    for (device, refused) in devices().flat_map(|of| [(of.clone(), false), (of, true)]) {
        device.device().on_uncaptured_error(Arc::new(drop));
        let pool = BucketPool::new(device.clone());
        dirty(&device, &pool);
        let (gone, mut scope) = (own(&device, KIB), device.scope());
        let unfilled = scope.take_to_fill(&pool, KIB).unwrap();
        if refused {
            scope.encoder().clear_buffer(&gone, 0, None);
            gone.destroy();
        }
        drop(unfilled);
        assert_eq!(scope.flush().is_err(), refused);
        let next = pool.allocate(KIB).unwrap();
        next.on(pool.default_stream()).unwrap().write(0, &[9; 1024]).unwrap();
        drop(scope);
        assert_eq!((seen(&device, &next), pool.stats().hits), (vec![9; 1024], 2), "{refused}");
    }
}

/// One block, taken twice to be filled: what ran of the first owner fills nothing of the second.
#[test]
fn what_is_taken_again_to_be_filled_is_zeroed_unless_its_own_commands_ran() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        dirty(&device, &pool);
        let mut scope = device.scope();
        scope.encoder().insert_debug_marker("a pass");
        drop(scope.take_to_fill(&pool, KIB).unwrap());
        scope.encoder().insert_debug_marker("another");
        scope.end_step();
        let taken = scope.take_to_fill(&pool, KIB).unwrap();
        scope.flush().unwrap();
        drop(scope);
        assert_eq!((seen(&device, &taken), pool.stats().hits), (vec![0; 1024], 2));
    }
}

/// A read-back is a command of the scope, and what is uploaded behind it comes although wgpu refuses the program's.
#[test]
fn an_upload_behind_a_read_back_is_not_lost_with_the_frame() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
        let pool = BucketPool::new(device.clone());
        let [one, two] = [(); 2].map(|()| pool.allocate(KIB).unwrap());
        let mut scope = device.scope();
        scope.upload(&uploads, &one, 0, &[3; 1024]).unwrap();
        let back = scope.read_back(&backs, &one, 0, KIB).unwrap();
        scope.upload(&uploads, &one, 0, &[4; 1024]).unwrap();
        scope.copy((&one, 0), (&two, 0), KIB).unwrap();
        end(&device, scope, Ends::Refused);
        assert!(back.wait(|_| ()).is_err());
        assert_eq!((seen(&device, &one), seen(&device, &two)), (vec![4; 1024], vec![4; 1024]));

        let mut scope = device.scope();
        let back = scope.read_back(&backs, &one, 0, KIB).unwrap();
        scope.upload(&uploads, &one, 0, &[5; 1024]).unwrap();
        end(&device, scope, Ends::Submitted);
        assert!(back.wait(|bytes| bytes == [4; 1024]).unwrap());
        assert_eq!(seen(&device, &one), [5; 1024]);
    }
}
