//! What each thread does, one operation after the other.

use crate::heap::Heap;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Mutex, PoisonError};

/// Blocks that go from one thread to the next together.
const BATCH: usize = 16;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Who is measured with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapGroup {
    /// Pools of host memory, beside one global allocator.
    Pools,
    /// Global allocators.
    Allocators,
}

/// A load on threads.
#[derive(Clone, Copy, Debug)]
pub struct ThreadLoad {
    /// Name in tables and records.
    pub name: &'static str,
    /// Who is measured.
    pub group: HeapGroup,
    /// The smallest and the largest block, in bytes.
    pub sizes: (usize, usize),
    /// The number of sizes, in equal steps; 0 for all of them.
    pub steps: usize,
    /// Blocks that a thread has at once.
    pub live: usize,
    /// Whether the next thread frees.
    pub passes: bool,
    /// Bytes between two that are written; at least one byte of a block is.
    pub touch: usize,
}

const fn pools(name: &'static str, passes: bool) -> ThreadLoad {
    let (group, sizes) = (HeapGroup::Pools, (256, 66 << 10));
    ThreadLoad { name, group, sizes, steps: 200, live: 64, passes, touch: usize::MAX }
}

const fn allocators(
    name: &'static str,
    sizes: (usize, usize),
    live: usize,
    passes: bool,
) -> ThreadLoad {
    let touch = if live < 1000 { PAGE } else { usize::MAX };
    ThreadLoad { name, group: HeapGroup::Allocators, sizes, steps: 0, live, passes, touch }
}

/// All loads. Sizes are drawn at random with equal chances.
pub const CASES: [ThreadLoad; 8] = [
    pools("200 sizes, own", false),
    pools("200 sizes, pass", true),
    allocators("16 B to 1 KiB, own", (16, 1 << 10), 1000, false),
    allocators("4 to 64 KiB, own", (4 << 10, 64 << 10), 1000, false),
    allocators("64 KiB to 4 MiB, own", (64 << 10, 4 << 20), 8, false),
    allocators("16 B to 1 KiB, pass", (16, 1 << 10), 1000, true),
    allocators("4 to 64 KiB, pass", (4 << 10, 64 << 10), 1000, true),
    allocators("64 KiB to 4 MiB, pass", (64 << 10, 4 << 20), 8, true),
];

impl ThreadLoad {
    fn size(&self, random: &mut SmallRng) -> usize {
        let (least, most) = self.sizes;
        match self.steps {
            0 => random.random_range(least..=most),
            steps => least + random.random_range(0..steps) * ((most - least) / (steps - 1)),
        }
    }

    fn batch(&self) -> usize {
        BATCH.min(self.live / 2)
    }
}

/// Blocks on their way to each thread.
pub(super) struct Mail<H: Heap>(Vec<Mutex<Vec<Vec<H::Block>>>>);

impl<H: Heap> Mail<H> {
    /// Returns an empty box for each thread.
    #[must_use]
    pub(super) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::new(Vec::new())).collect())
    }

    /// Takes a batch that was sent to this thread.
    fn receive(&self, thread: usize) -> Option<Vec<H::Block>> {
        self.0[thread].lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Sends a batch to the thread behind `thread`, or returns it if that has `most` already.
    fn send(&self, thread: usize, batch: Vec<H::Block>, most: usize) -> Option<Vec<H::Block>> {
        let next = &self.0[(thread + 1) % self.0.len()];
        let mut sent = next.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= most {
            return Some(batch);
        }
        sent.push(batch);
        None
    }
}

/// One thread and its blocks.
pub(super) struct Worker<'w, H: Heap> {
    heap: &'w H,
    load: ThreadLoad,
    mail: &'w Mail<H>,
    thread: usize,
    random: SmallRng,
    live: Vec<Option<H::Block>>,
    outgoing: Vec<H::Block>,
    incoming: Vec<H::Block>,
}

impl<'w, H: Heap> Worker<'w, H> {
    /// Returns thread number `thread` of the load, without blocks.
    #[must_use]
    pub(super) fn new(heap: &'w H, load: ThreadLoad, mail: &'w Mail<H>, thread: usize) -> Self {
        let places = if load.passes { 0 } else { load.live };
        let live = std::iter::repeat_with(|| None).take(places).collect();
        let random = SmallRng::seed_from_u64(1 + thread as u64);
        let (outgoing, incoming) = (Vec::new(), Vec::new());
        Self { heap, load, mail, thread, random, live, outgoing, incoming }
    }

    /// Allocates a block and frees one: of its own, or one that the thread before it sent.
    #[inline]
    pub(super) fn operation(&mut self) {
        let mut block = self.heap.allocate(self.load.size(&mut self.random));
        H::touch(&mut block, self.load.touch);
        if self.load.passes {
            self.pass(block);
        } else {
            let at = self.random.random_range(0..self.live.len());
            self.live[at] = Some(block);
        }
    }

    fn pass(&mut self, block: H::Block) {
        let size = self.load.batch();
        self.outgoing.push(block);
        if self.outgoing.len() >= size {
            let batch = std::mem::replace(&mut self.outgoing, Vec::with_capacity(size));
            let most = self.load.live / size;
            // The next thread stands still: this one frees its own blocks.
            self.incoming.extend(self.mail.send(self.thread, batch, most).into_iter().flatten());
        }
        if self.incoming.is_empty() {
            self.incoming.extend(self.mail.receive(self.thread).into_iter().flatten());
        }
        drop(self.incoming.pop());
    }
}
