//! Tests of page heaps.

use super::*;
use crate::pages::tests::without_forks;

const MIB: usize = 1 << 20;

fn free(heap: &PageHeap, block: NonNull<u8>) {
    // SAFETY: each test frees its own blocks, once.
    unsafe { heap.free(block) };
}

#[test]
fn a_heap_that_is_not_started_serves_nothing() {
    static HEAP: PageHeap = PageHeap::new();
    assert_eq!(HEAP.allocate(MIB, 16), None);
    assert_eq!(HEAP.allocate_zeroed(MIB, 16), None);
    assert_eq!((HEAP.trim(1), HEAP.stats()), (0, PageHeapStats::default()));
    assert_eq!(HEAP.stats().to_string(), "off: the heap is not started");
    let own = 0_u8;
    assert!(!HEAP.has(&raw const own) && !HEAP.has(ptr::null()));
}

#[test]
fn the_first_request_may_have_any_size() {
    static HEAPS: [PageHeap; 4] = [const { PageHeap::new() }; 4];
    let _quiet = without_forks();
    for (heap, bytes) in HEAPS.iter().zip([1, 64 * MIB, 128 * MIB, 64 * MIB - 4096]) {
        assert!(heap.start());
        let block = heap.allocate(bytes, 16);
        assert!(block.is_some(), "{bytes} bytes");
        free(heap, block.unwrap());
    }
}

#[test]
fn a_freed_block_is_reused_and_zeroed_on_request() {
    static HEAP: PageHeap = PageHeap::new();
    let _quiet = without_forks();
    assert!(HEAP.start() && HEAP.start(), "a second start changes nothing");
    let block = HEAP.allocate(MIB, 16).unwrap();
    // SAFETY: the block is this test's own, of 1 MiB.
    unsafe { block.as_ptr().write_bytes(7, MIB) };
    free(&HEAP, block);
    let again = HEAP.allocate_zeroed(MIB, 16).unwrap();
    assert_eq!(again, block);
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(again.as_ptr(), MIB) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    free(&HEAP, again);
    let stats = HEAP.stats();
    assert_eq!((stats.allocations, stats.misses, stats.live_bytes), (2, 1, 0));
    assert_eq!((stats.cached_bytes, stats.live_peak_bytes), (MIB as u64, MIB as u64));
}

#[test]
fn requests_that_no_page_serves_get_nothing() {
    static HEAP: PageHeap = PageHeap::new();
    let _quiet = without_forks();
    assert!(HEAP.start());
    assert_eq!(HEAP.allocate(usize::MAX, 16), None);
    assert_eq!(HEAP.allocate(1 << 39, 16), None, "more than 256 GiB");
    assert_eq!(HEAP.allocate(MIB, 4 * MIB), None, "aligned to more than 2 MiB");
    assert_eq!((HEAP.allocate(MIB, 0), HEAP.allocate_zeroed(MIB, 24)), (None, None));
    let block = HEAP.allocate(0, 1).unwrap();
    // SAFETY: the block is in use.
    assert!(unsafe { HEAP.usable_bytes(block) } > 0, "0 bytes are one page");
    // SAFETY: as above.
    assert_eq!(unsafe { HEAP.resize(block, 1 << 39, 16) }, None);
    assert!(HEAP.has(block.as_ptr()));
    free(&HEAP, block);
}

#[test]
fn a_block_keeps_its_contents_when_it_is_resized() {
    static HEAP: PageHeap = PageHeap::new();
    let _quiet = without_forks();
    assert!(HEAP.start());
    let block = HEAP.allocate(MIB, 16).unwrap();
    // Its neighbour keeps the block from growing in place.
    let neighbour = HEAP.allocate(MIB, 16).unwrap();
    // SAFETY: the block is this test's own, of 1 MiB.
    unsafe { block.as_ptr().write_bytes(3, MIB) };
    let block = [2 * MIB, 64 << 10, 30 * MIB].into_iter().fold(block, |block, bytes| {
        // SAFETY: the block is in use, and only the result is used from here on.
        let block = unsafe { HEAP.resize(block, bytes, 16) }.unwrap();
        // SAFETY: the block is in use.
        assert!(unsafe { HEAP.usable_bytes(block) } >= bytes);
        // SAFETY: the block has always held 64 KiB, which were written above.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), 64 << 10) };
        assert!(bytes.iter().all(|byte| *byte == 3));
        block
    });
    free(&HEAP, block);
    free(&HEAP, neighbour);
}

#[test]
fn what_is_beyond_the_limit_goes_back_with_the_next_frees() {
    static HEAP: PageHeap = PageHeap::new().cached_limit(8 << 20).decay(None);
    let _quiet = without_forks();
    assert!(HEAP.start());
    let lengths = (1..=8).map(|mib| mib * MIB);
    let blocks: Vec<_> = lengths.map(|bytes| HEAP.allocate(bytes, 16).unwrap()).collect();
    for block in blocks {
        free(&HEAP, block);
    }
    // 36 MiB were freed, so two looks have come, after 16 MiB and a bit each.
    assert!(HEAP.stats().cached_bytes <= (8 + 16) << 20, "{}", HEAP.stats());
    while HEAP.look() > 8 * MIB {}
    assert!(HEAP.stats().cached_bytes > 7 << 20, "{}: no more than needed", HEAP.stats());
    let large = HEAP.allocate(4096 * MIB, 16).unwrap();
    free(&HEAP, large);
    assert!(HEAP.stats().cached_bytes <= 8 << 20, "{}: a block beyond the limit", HEAP.stats());
    HEAP.configure(Some(1), None);
    while HEAP.look() > 0 {}
    assert_eq!(HEAP.stats().cached_limit_bytes, 1);
}

#[test]
fn a_shorter_decay_holds_at_once() {
    static HEAP: PageHeap = PageHeap::new().decay(None);
    let _quiet = without_forks();
    assert!(HEAP.start());
    free(&HEAP, HEAP.allocate(8 * MIB, 16).unwrap());
    HEAP.look();
    HEAP.configure(None, Some(Duration::from_millis(1)));
    // Ends only if pages go back by the new decay; a quarter of the peak and 1 MiB stay at first.
    while HEAP.look() > 3 * MIB {}
    assert!(HEAP.stats().returned_bytes >= 5 << 20, "{}", HEAP.stats());
}

#[test]
fn a_heap_reserves_no_more_addresses_than_it_may() {
    static HEAP: PageHeap = PageHeap::new().addresses(1 << 30);
    let _quiet = without_forks();
    assert!(HEAP.start());
    assert_eq!(HEAP.allocate(2 << 30, 16), None);
    let block = HEAP.allocate(500 << 20, 16).unwrap();
    assert!(HEAP.has(block.as_ptr()) && !HEAP.has(block.as_ptr().wrapping_add(1 << 30)));
    free(&HEAP, block);
}

#[test]
fn what_is_trimmed_is_counted() {
    static HEAP: PageHeap = PageHeap::new().decay(None);
    let _quiet = without_forks();
    assert!(HEAP.start());
    let block = HEAP.allocate(4 * MIB, 16).unwrap();
    free(&HEAP, block);
    assert_eq!(HEAP.trim(u64::MAX), 4 << 20);
    let stats = HEAP.stats();
    assert_eq!((stats.cached_bytes, stats.returned_bytes), (0, 4 << 20));
    assert_eq!(stats.live_peak_bytes, 4 << 20);
    HEAP.reset_peak();
    assert_eq!(HEAP.stats().live_peak_bytes, 0);
    assert!(stats.to_string().ends_with("4.00 MiB given back"), "{stats}");
}
