//! A program with the runtime of a sanitizer linked in: a `Tcache` leaves its blocks to that.
#![expect(unsafe_code, reason = "a name of the runtime")]

use pool_host::{Tcache, TcacheState};

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

/// What each sanitizer that has a `malloc` defines.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_get_allocated_size(_: *const u8) -> usize {
    0
}

/// The dynamic linker does not know the name, as in what `rustc` links.
#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn a_tcache_is_off_beside_a_sanitizer() {
    let is_forced = std::env::var("BUCKETPOOL_HOST").is_ok_and(|words| words.contains("on"));
    drop(vec![1_u8; 1 << 20]);
    let stats = ALLOCATOR.stats();
    assert_eq!(ALLOCATOR.is_active(), is_forced, "{stats}");
    assert_eq!(stats.state == TcacheState::Off, !is_forced, "{stats}");
}
