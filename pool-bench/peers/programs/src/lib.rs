//! The global allocator of a program that is measured: glibc's unless a feature says otherwise.

#[cfg(feature = "tcache")]
#[global_allocator]
static ALLOCATOR: pool_host::Tcache = pool_host::Tcache::new();

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
