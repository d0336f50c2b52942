//! Buffers that grow keep their bytes, whatever becomes of the frame.

use crate::present::devices;
use crate::{encoder, own};
use pool_core::{BucketPolicy, BucketPool, KIB, MIB, Why, ZeroPolicy, port::Limit};
use pool_wgpu::{GrowingBuffer, Scope, Unpooled, WgpuAllocator};
use std::sync::Arc;
use wgpu::BufferUsages;

/// How a frame ends. The last two record in the scope's own encoder before the buffer grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Dropped,
    Refused,
    Prologue,
    PrologueDropped,
    SubmittedWith,
    Submitted,
    OwnEncoder,
    OwnEncoderRefused,
}

const ENDS: [Ends; 8] = [
    Ends::Dropped,
    Ends::Refused,
    Ends::Prologue,
    Ends::PrologueDropped,
    Ends::SubmittedWith,
    Ends::Submitted,
    Ends::OwnEncoder,
    Ends::OwnEncoderRefused,
];

impl Ends {
    fn runs(self) -> bool {
        use Ends::{Dropped, OwnEncoderRefused, PrologueDropped, Refused};
        !matches!(self, Dropped | PrologueDropped | Refused | OwnEncoderRefused)
    }
}

fn begin(scope: &mut Scope, ends: Ends) {
    if matches!(ends, Ends::OwnEncoder | Ends::OwnEncoderRefused) {
        scope.encoder().insert_debug_marker("a command before");
    }
}

fn end(device: &WgpuAllocator, mut scope: Scope, ends: Ends) {
    let mut commands = encoder(device);
    match ends {
        Ends::Dropped => drop(scope),
        Ends::Refused | Ends::OwnEncoderRefused => {
            let gone = own(device, KIB);
            let own_encoder = ends == Ends::OwnEncoderRefused;
            let of = if own_encoder { scope.encoder() } else { &mut commands };
            of.clear_buffer(&gone, 0, None);
            gone.destroy();
            let refused = if own_encoder { scope.submit() } else { scope.submit_with(commands) };
            assert_eq!(refused.unwrap_err().why, Why::NotSubmitted);
        }
        Ends::Prologue => {
            let prologue = scope.prologue(&mut commands).unwrap();
            device.queue().submit(prologue.into_iter().chain([commands.finish()]));
        }
        Ends::PrologueDropped => drop(scope.prologue(&mut commands).unwrap()),
        Ends::SubmittedWith => drop(scope.submit_with(commands).unwrap()),
        Ends::Submitted | Ends::OwnEncoder => drop(scope.submit().unwrap()),
    }
}

fn seen(device: &WgpuAllocator, buffer: &GrowingBuffer) -> Vec<u8> {
    let backs = device.read_backs(MIB);
    let mut scope = device.scope();
    let bytes = buffer.capacity().next_multiple_of(4);
    let back = scope.read_back(&backs, buffer.buffer(), 0, bytes).unwrap();
    scope.submit().unwrap();
    back.wait(<[u8]>::to_vec).unwrap()
}

/// A pool with dirty blocks of these sizes.
fn dirty(device: &WgpuAllocator, pool: &BucketPool<WgpuAllocator>, sizes: &[u64]) {
    let uploads = device.uploads(MIB, MIB);
    let mut scope = device.scope();
    let usages = BufferUsages::VERTEX | BufferUsages::COPY_SRC;
    let taken: Vec<_> =
        sizes.iter().map(|size| scope.take_kind(pool, *size, usages).unwrap()).collect();
    for buffer in &taken {
        let bytes = vec![0xAB; usize::try_from(buffer.size()).unwrap()];
        scope.upload(&uploads, buffer, 0, &bytes).unwrap();
    }
    drop(taken);
    scope.submit().unwrap();
}

/// Two growths in one frame, uploads before, between and behind them.
fn grows(device: &WgpuAllocator, pool: &BucketPool<WgpuAllocator>, ends: Ends, zeroes: bool) {
    let uploads = device.uploads(MIB, MIB);
    dirty(device, pool, &[KIB, 2 * KIB, 5 * KIB]);
    let mut buffer = GrowingBuffer::new(pool, KIB, BufferUsages::VERTEX).unwrap();
    let mut scope = device.scope();
    scope.upload(&uploads, buffer.buffer(), 0, &[1; 1024]).unwrap();
    scope.submit().unwrap();

    let misses = pool.stats().misses;
    let mut scope = device.scope();
    begin(&mut scope, ends);
    scope.upload(&uploads, buffer.buffer(), 0, &[2; 4]).unwrap();
    assert!(buffer.reserve(&mut scope, KIB + 1).unwrap());
    scope.upload(&uploads, buffer.buffer(), 4, &[3; 4]).unwrap();
    assert!(buffer.reserve(&mut scope, 5 * KIB).unwrap());
    scope.upload(&uploads, buffer.buffer(), 8, &[4; 4]).unwrap();
    scope.upload(&uploads, buffer.buffer(), 3 * KIB, &[5; 4]).unwrap();
    // Its old blocks do not come back to the frame.
    let usages = BufferUsages::VERTEX | BufferUsages::COPY_SRC;
    let other = scope.take_kind(pool, KIB, usages).unwrap();
    scope.upload(&uploads, &other, 0, &[0xCD; 1024]).unwrap();
    assert_eq!(pool.stats().misses, misses + 1);
    end(device, scope, ends);

    let mut expected = vec![if zeroes { 0 } else { 0xAB }; 5 * 1024];
    expected[..1024].fill(1);
    let ahead = matches!(ends, Ends::Refused); // whose uploads came all the same
    if ends.runs() || ahead {
        for (at, byte) in [(0, 2), (4, 3), (8, 4), (3 * 1024, 5)] {
            expected[at..at + 4].fill(byte);
        }
    }
    let shown = seen(device, &buffer);
    let wrong = shown.iter().zip(&expected).position(|(a, b)| a != b);
    let wrong = wrong.map(|at| (at, shown[at], expected[at]));
    assert_eq!(wrong, None, "{ends:?}, zeroes: {zeroes}");
    // The frame is through: its old blocks serve again.
    let misses = pool.stats().misses;
    let scope = device.scope();
    let again = (scope.take_kind(pool, KIB, usages), scope.take_kind(pool, 2 * KIB, usages));
    assert!(again.0.is_ok() && again.1.is_ok());
    assert_eq!(pool.stats().misses, misses, "{ends:?}");
}

#[test]
fn bytes_are_kept_whatever_becomes_of_the_frame() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        for ends in ENDS {
            grows(&device, &BucketPool::new(device.clone()), ends, true);
            let never = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
            grows(&device, &never, ends, false);
        }
        assert!(device.faults().is_empty());
    }
}

/// Random sizes and ends against a model of the bytes.
#[test]
fn bytes_are_those_of_a_model() {
    let mut seed = 0x5EED_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(MIB, MIB));
        let mut buffer = GrowingBuffer::new(&pool, 4, BufferUsages::STORAGE).unwrap();
        let mut model = vec![0_u8; 4];
        for frame in 0..60 {
            let ends = ENDS[usize::try_from(random(ENDS.len() as u64)).unwrap()];
            let mut scope = device.scope();
            begin(&mut scope, ends);
            let mut after = model.clone();
            for _ in 0..random(4) {
                let bytes = buffer.capacity() / 4 * random(7);
                let grew = buffer.reserve(&mut scope, bytes.min(MIB)).unwrap();
                assert_eq!(grew, buffer.capacity() > after.len() as u64);
                let size = usize::try_from(buffer.capacity()).unwrap();
                model.resize(size, 0);
                after.resize(size, 0);
                let at = random(buffer.capacity() / 4) * 4;
                let byte = u8::try_from(random(255)).unwrap();
                scope.upload(&uploads, buffer.buffer(), at, &[byte; 4]).unwrap();
                let at = usize::try_from(at).unwrap();
                after[at..at + 4].fill(byte);
            }
            end(&device, scope, ends);
            if ends.runs() || ends == Ends::Refused {
                model = after;
            }
            assert!(seen(&device, &buffer) == model, "seed 0x5EED, frame {frame}, {ends:?}");
        }
    }
}

#[test]
fn a_buffer_that_is_in_use_does_not_grow_and_is_not_changed() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let mut buffer = GrowingBuffer::new(&pool, KIB, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        let lent = scope.lend(buffer.buffer()).unwrap();
        let refused = buffer.reserve(&mut scope, 2 * KIB).unwrap_err();
        assert_eq!(refused.why(), Why::Unsupported);
        assert!(refused.to_string().contains("reserve before"), "{refused}");
        let mut other = device.scope();
        let refused = buffer.reserve(&mut other, 2 * KIB).unwrap_err();
        assert_eq!(refused.why(), Why::NotSubmitted);
        let mut commands = encoder(&device);
        let source = own(&device, KIB);
        device.queue().write_buffer(&source, 0, &[6; 1024]);
        commands.copy_buffer_to_buffer(&source, 0, &lent, 0, KIB);
        scope.submit_with(commands).unwrap();
        assert!(buffer.reserve(&mut other, 1500).unwrap());
        let target = own(&device, KIB);
        other.copy((buffer.buffer(), 0), (&Unpooled(&target), 0), KIB).unwrap();
        other.submit().unwrap();
        assert_eq!((crate::shown(&device, &target), buffer.capacity()), (Some(6), 2 * KIB));
    }
}

#[test]
fn where_twice_the_size_is_too_much_it_takes_what_is_asked() {
    for device in devices() {
        let pool = BucketPool::builder(device.clone()).reserved_limit(3 * KIB).build();
        let mut buffer = GrowingBuffer::new(&pool, KIB, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        assert!(buffer.reserve(&mut scope, 1500).unwrap());
        assert_eq!(buffer.capacity(), 2 * KIB);
        scope.submit().unwrap();
        let mut scope = device.scope();
        let refused = buffer.reserve(&mut scope, 2 * KIB + 4).unwrap_err();
        assert!(matches!(refused.why(), Why::Limit(Limit::Reserved)), "{refused}");
        assert_eq!(buffer.capacity(), 2 * KIB);
        scope.submit().unwrap();

        let exact = BucketPool::builder(device.clone()).policy(BucketPolicy::Exact);
        let pool = exact.reserved_limit(5 * KIB / 2).build();
        let mut buffer = GrowingBuffer::new(&pool, KIB, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        assert!(buffer.reserve(&mut scope, 1500).unwrap());
        assert_eq!(buffer.capacity(), 1500);
        scope.submit().unwrap();
    }
}

/// A grown buffer that is dropped leaves nothing in the block for its next owner, in the same dropped scope.
#[test]
fn bytes_do_not_come_into_a_block_that_serves_another() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(MIB, MIB);
        let mut buffer = GrowingBuffer::new(&pool, KIB, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        scope.upload(&uploads, buffer.buffer(), 0, &[1; 1024]).unwrap();
        scope.submit().unwrap();
        let mut scope = device.scope();
        let _ = scope.encoder();
        buffer.reserve(&mut scope, 2 * KIB).unwrap();
        drop(buffer);
        scope.encoder().insert_debug_marker("a command");
        scope.end_step();
        let next = GrowingBuffer::new(&pool, 4, BufferUsages::VERTEX).unwrap();
        let usage = next.buffer().kind();
        let taken = scope.take_kind(&pool, 2 * KIB, usage).unwrap();
        drop(scope);
        let target = own(&device, KIB);
        let mut scope = device.scope();
        scope.copy((&taken, 0), (&Unpooled(&target), 0), KIB).unwrap();
        scope.submit().unwrap();
        assert_eq!((crate::shown(&device, &target), pool.stats().misses), (Some(0), 3));
    }
}

/// Growths in several steps of a scope whose first commands wgpu refuses.
#[test]
fn growths_in_several_steps_are_made_in_their_order_where_wgpu_refuses_the_commands() {
    for device in devices() {
        device.device().on_uncaptured_error(Arc::new(drop));
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(MIB, MIB));
        dirty(&device, &pool, &[KIB, 2 * KIB, 5 * KIB]);
        let mut buffer = GrowingBuffer::new(&pool, KIB, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        scope.upload(&uploads, buffer.buffer(), 0, &[1; 1024]).unwrap();
        scope.submit().unwrap();

        let (gone, mut scope) = (own(&device, KIB), device.scope());
        scope.encoder().clear_buffer(&gone, 0, None);
        gone.destroy();
        assert!(buffer.reserve(&mut scope, 2 * KIB).unwrap());
        scope.end_step();
        scope.upload(&uploads, buffer.buffer(), 0, &[2; 4]).unwrap(); // ahead of its step
        assert!(buffer.reserve(&mut scope, 5 * KIB).unwrap());
        assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted);
        let mut expected = vec![0; 5 * 1024];
        expected[..1024].fill(1);
        expected[..4].fill(2);
        assert_eq!(seen(&device, &buffer), expected);
    }
}

#[test]
fn a_buffer_that_begins_with_no_bytes_grows() {
    for device in devices() {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(MIB, MIB));
        let mut buffer = GrowingBuffer::new(&pool, 0, BufferUsages::VERTEX).unwrap();
        let mut scope = device.scope();
        assert!(buffer.reserve(&mut scope, KIB).unwrap());
        let _lent = scope.lend(buffer.buffer()).unwrap();
        scope.upload(&uploads, buffer.buffer(), 0, &[1; 1024]).unwrap();
        scope.submit_with(encoder(&device)).unwrap();
        assert_eq!(seen(&device, &buffer), [1; 1024]);
    }
}

/// A list of `count` numbers, all of them `value`.
fn indices(value: u16, count: usize) -> Vec<u8> {
    bytemuck::cast_slice(&vec![value; count]).to_vec()
}

/// Index lists have three numbers for each triangle, of two bytes each.
#[test]
fn a_list_that_ends_inside_of_a_word_is_filled_up_behind_its_end() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        let mut list = GrowingBuffer::new(&pool, 60, BufferUsages::INDEX).unwrap();
        for count in [30, 27, 33, 36, 39, 9] {
            let mut scope = device.scope();
            list.upload_slice(&mut scope, &uploads, 0, &vec![7_u16; count]).unwrap();
            scope.submit().unwrap();
            let shown = seen(&device, &list);
            assert_eq!(shown[..2 * count], indices(7, count), "{count}");
            let end = (2 * count).next_multiple_of(4).min(shown.len());
            assert!(shown[2 * count..end].iter().all(|byte| *byte == 0), "{count}");
        }
        // An append ends inside of a word behind the list.
        list.clear();
        let mut scope = device.scope();
        list.upload_slice(&mut scope, &uploads, 0, &[1_u16; 4]).unwrap();
        list.upload_slice(&mut scope, &uploads, 4, &[2_u16; 3]).unwrap();
        scope.submit().unwrap();
        let shown = seen(&device, &list);
        assert_eq!(shown[..14], [indices(1, 4), indices(2, 3)].concat());
    }
}

#[test]
fn a_change_inside_of_a_list_overwrites_no_other_element() {
    for device in devices() {
        let pool = BucketPool::new(device.clone());
        let uploads = device.uploads(64 * KIB, MIB);
        let mut list = GrowingBuffer::new(&pool, 60, BufferUsages::INDEX).unwrap();
        let mut scope = device.scope();
        list.upload_slice(&mut scope, &uploads, 0, &[7_u16; 10]).unwrap();
        list.upload_slice(&mut scope, &uploads, 0, &[8_u16; 2]).unwrap();
        let refused = list.upload_slice(&mut scope, &uploads, 4, &[8_u16; 3]).unwrap_err();
        assert_eq!(refused.why(), Why::Unaligned);
        assert!(refused.to_string().contains("`GrowingBuffer::clear`"), "{refused}");
        list.upload_slice(&mut scope, &uploads, 4, &[9_u16; 2]).unwrap();
        scope.submit().unwrap();
        let expected = [indices(8, 2), indices(7, 2), indices(9, 2), indices(7, 4)].concat();
        assert_eq!(seen(&device, &list)[..20], expected);
    }
}
