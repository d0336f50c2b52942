//! Shards that are broken on purpose: each fault is loud, poisons its pool, and gives nobody memory
//! that has an owner.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "memory whose parts could be zeroed")]

use crate::blocks::tests::{Nothing, record};
use crate::pool::BucketPool;
use crate::port::{Immediate, PageCalls, Sliceable, Why};
use crate::ranges::Ranges;
use crate::ranges::arena::ArenaConfig;
use crate::ranges::node::NodeState;
use crate::shard::Heap;
use crate::store::bound;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Sliceable for Nothing {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }
    unsafe fn zero_part(
        &self,
        _: &u64,
        _: Range<u64>,
        (): &(),
    ) -> Result<(), crate::port::DeviceError> {
        Ok(())
    }
}

fn arena(config: ArenaConfig) -> BucketPool<Nothing> {
    BucketPool::builder(Nothing).arena(config).build()
}

/// The first range of the first shard in a state.
fn range(heap: &Heap<Nothing>, is: impl Fn(NodeState) -> bool) -> u32 {
    let ids = 0..heap.ranges.nodes.len();
    ids.into_iter().find(|id| is(heap.ranges.nodes[*id].state)).unwrap()
}

fn is_live(state: NodeState) -> bool {
    state == NodeState::Live
}

fn is_free(state: NodeState) -> bool {
    matches!(state, NodeState::Free(_))
}

/// Does what meets a broken invariant, which panics in a build with debug assertions. The pool serves
/// nothing from then on.
fn breaks(pool: &BucketPool<Nothing>, what: &str, work: impl FnOnce()) {
    let broken = catch_unwind(AssertUnwindSafe(work));
    assert_eq!(broken.is_err(), cfg!(debug_assertions), "{what}");
    let refused = pool.allocate(512).unwrap_err();
    assert_eq!(refused.why(), Why::Broken);
    assert!(refused.to_string().contains(what), "{refused}");
}

/// As a call of the pool that takes the lock of its first shard.
fn breaks_inside(pool: &BucketPool<Nothing>, what: &str, work: impl FnOnce(&mut Heap<Nothing>)) {
    breaks(pool, what, || {
        let _watch = pool.store().watch();
        work(&mut pool.store().shards.lock(0));
    });
}

#[test]
fn a_range_that_a_list_and_a_buffer_have_is_not_lent() {
    for config in [ArenaConfig::grow(), ArenaConfig::torch()] {
        let pool = arena(config);
        let _kept = pool.allocate(512).unwrap();
        {
            let heap = &mut *pool.store().shards.lock(0);
            let free = range(heap, is_free);
            heap.ranges.nodes[free].state = NodeState::Live;
        }
        breaks(&pool, "a range that a list has is free", || {
            assert_eq!(pool.allocate(512).unwrap_err().why(), Why::Broken);
        });
    }
}

#[test]
fn a_range_that_is_in_no_tree_is_not_taken_out_of_one() {
    let pool = arena(ArenaConfig::torch());
    let [below, freed, above, _last] = [(); 4].map(|()| pool.allocate(512).unwrap());
    drop((below, above));
    {
        let heap = &mut *pool.store().shards.lock(0);
        let Ranges { nodes, lists, .. } = &mut heap.ranges;
        let of_512 = |id: &u32| nodes[*id].bytes == 512 && is_free(nodes[*id].state);
        for id in (0..nodes.len()).filter(of_512).collect::<Vec<_>>() {
            let NodeState::Free(list) = nodes[id].state else { panic!("it is free") };
            let key = nodes[id].key();
            lists.bins(list).remove(nodes, id, key);
        }
    }
    breaks(&pool, "a range that is taken out of a tree is in it", || drop(freed));
}

#[test]
fn a_range_without_a_segment_is_not_free_memory() {
    let pool = arena(ArenaConfig::grow());
    let freed = pool.allocate(512).unwrap();
    let cached = {
        let heap = &mut *pool.store().shards.lock(0);
        let live = range(heap, is_live);
        heap.ranges.nodes[live].segment = 77;
        heap.ranges.cached
    };
    breaks(&pool, "each range has a segment", || drop(freed));
    assert_eq!(pool.store().shards.lock(0).ranges.cached, cached);
}

#[test]
fn a_range_of_a_buffer_is_not_taken_out_for_a_call_to_the_device() {
    let pool = arena(ArenaConfig::grow());
    let _kept = pool.allocate(512).unwrap();
    breaks_inside(&pool, "a range that is taken out is in a list", |heap| {
        let live = range(heap, is_live);
        assert_eq!(heap.ranges.carve(live, &(0..512)), None);
        assert_eq!(heap.ranges.nodes[live].state, NodeState::Live);
    });
}

#[test]
fn a_whole_block_is_not_freed_into_ranges() {
    let pool = arena(ArenaConfig::grow());
    breaks_inside(&pool, "what a shard of ranges takes back is a part of a segment", |heap| {
        heap.free_range(&Immediate, record(1, 512, 0, 0));
    });
}

#[test]
fn a_segment_without_its_block_serves_nothing() {
    let pool = arena(ArenaConfig::grow());
    let _kept = pool.allocate(512).unwrap();
    let hidden = pool.store().shards.lock(0).segments[0].take();
    breaks(&pool, "each segment has its block", || {
        assert_eq!(pool.allocate(512).unwrap_err().why(), Why::Broken);
    });
    pool.store().shards.lock(0).segments[0] = hidden;
}

#[test]
fn bytes_of_a_class_go_back_once() {
    let pool = BucketPool::builder(Nothing).shards(2).build();
    drop(pool.allocate(512).unwrap());
    breaks_inside(&pool, "the bytes of a class are counted until they go back", |_| {
        bound::note_gone(pool.store(), 0, 512);
        bound::note_gone(pool.store(), 0, 512);
    });
}
