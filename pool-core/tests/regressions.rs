//! Placeholder.
#[test]
fn a() { assert!(pool_core::KIB == 1024); }
