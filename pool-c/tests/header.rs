//! The header is that of the functions: `BLESS=1` writes it.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_functions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut text = Vec::new();
    cbindgen::generate_with_config(root, config).unwrap().write(&mut text);
    let (path, text) = (root.join("include/bucketpool.h"), String::from_utf8(text).unwrap());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == text,
        "include/bucketpool.h is stale; BLESS=1 cargo test -p pool-c --test header"
    );
}
