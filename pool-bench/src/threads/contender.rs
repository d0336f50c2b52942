//! Who is measured on threads.

use super::load::{HeapGroup, ThreadLoad};
use crate::heap::{Global, Heap, HostPool, TCACHE};
#[cfg(feature = "peers")]
use crate::peers::Peer;
use crate::spec::NamedPolicy;
use bucketpool::host::{self, HostAllocator};

/// A contender on threads.
#[derive(Clone, Debug)]
pub enum ThreadContender {
    /// A pool of host memory.
    Pool(NamedPolicy),
    /// The pool of the process, [`bucketpool::host::global`].
    GlobalPool,
    /// The tcache.
    Tcache,
    /// Another global allocator.
    #[cfg(feature = "peers")]
    #[expect(private_interfaces, reason = "the peers are those of this crate")]
    Peer(Peer),
}

/// Work that is done on the memory of a contender; it is compiled for each kind of memory.
pub trait OnHeap {
    /// What the work returns.
    type Result;
    /// Does the work.
    fn on<H: Heap>(self, heap: &H) -> Self::Result;
}

#[cfg(feature = "peers")]
struct OnPeer<W>(W);

#[cfg(feature = "peers")]
impl<W: OnHeap> crate::peers::Job for OnPeer<W> {
    type Result = W::Result;
    fn run<A: std::alloc::GlobalAlloc + Sync>(self, allocator: &'static A) -> W::Result {
        self.0.on(&Global(allocator))
    }
}

impl ThreadContender {
    /// Returns the contenders of a load, and the place of the one that they are compared with.
    #[must_use]
    pub fn of(load: &ThreadLoad, policies: &[NamedPolicy]) -> Vec<Self> {
        let mut contenders = Vec::new();
        match load.group {
            HeapGroup::Pools => {
                #[cfg(feature = "peers")]
                contenders.push(Self::Peer(Peer::Mimalloc));
                contenders.extend(policies.iter().cloned().map(Self::Pool));
                contenders.push(Self::GlobalPool);
            }
            HeapGroup::Allocators => {
                contenders.push(Self::Tcache);
                #[cfg(feature = "peers")]
                contenders.extend(Peer::ALL[1..].iter().copied().map(Self::Peer));
            }
        }
        contenders
    }

    /// Returns the name in tables and records.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Pool(policy) => policy.text.clone(),
            Self::GlobalPool => "global()".into(),
            Self::Tcache => "tcache".into(),
            #[cfg(feature = "peers")]
            Self::Peer(peer) => peer.name().into(),
        }
    }

    /// Does work on a pool of one shard with this contender's policy; `None` for another contender.
    pub fn with_one_shard<W: OnHeap>(&self, work: W) -> Option<W::Result> {
        let Self::Pool(policy) = self else { return None };
        let pool: HostPool = policy.builder(HostAllocator::new()).shards(1).build();
        Some(work.on(&pool))
    }

    /// Does work on this contender's memory. A pool is made for it and ends with it.
    pub fn with<W: OnHeap>(&self, work: W) -> W::Result {
        match self {
            Self::Pool(policy) => {
                let pool: HostPool = policy.builder(HostAllocator::new()).build();
                work.on(&pool)
            }
            Self::GlobalPool => work.on(host::global()),
            Self::Tcache => work.on(&Global(&TCACHE)),
            #[cfg(feature = "peers")]
            Self::Peer(peer) => peer.run(OnPeer(work)),
        }
    }
}
