//! The fuzz targets: functions of any bytes, each of which returns, or panics because of a fault.
//! A reader that takes more memory than its bytes times a constant has a fault.
//!
//! `cargo xtask ci` runs the saved inputs in `corpus` through them; `cargo xtask ci --deep` looks
//! for new ones, five minutes for each target.

mod memory;

use memory::{limited, readable};
use pool_config::{PolicySpec, PoolConfig};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB};
use pool_core::observe::MemoryMap;
use pool_host::HostAllocator;
use pool_sim::SimDevice;
use pool_sim::conformance::{Script, Subject};
use pool_trace::{Log, Malformed};

/// A script of operations, over whole blocks and arenas of host memory, and over the simulated
/// device, whose calls fail when the script says so.
pub fn script(bytes: &[u8]) {
    let script = Script::decode(&bytes[..bytes.len().min(1 << 10)]);
    let host = || Subject::new(HostAllocator::new);
    let sim = Subject::simulated;
    let checked = match bytes.last().map_or(0, |byte| byte % 6) {
        0 => host().check(&script),
        1 => host().arena(&ArenaConfig::pages(4 * KIB, 0.1)).check(&script),
        2 => host().arena(&ArenaConfig::segments(16 * KIB)).check(&script),
        3 => sim().check(&script),
        4 => sim().arena(&ArenaConfig::torch()).check(&script),
        _ => sim().arena(&ArenaConfig::grow()).check(&script),
    };
    assert_eq!(checked, Ok(()), "\n{script}");
}

/// A `.ptrace.csv`; what is read is written and read again, and written in the other formats.
pub fn ptrace(bytes: &[u8]) {
    let write = |log: &Log, out: &mut Vec<u8>| {
        pool_trace::perfetto::write(log, out)?;
        pool_trace::rmm::write(log, out)?;
        pool_trace::torch::write(log, &MemoryMap::default(), out)?;
        out.clear();
        pool_trace::ptrace::write(log, out)
    };
    reads(bytes, |bytes| pool_trace::ptrace::read(bytes), Some(&write));
}

/// A log of RMM; what is read is written and read again.
pub fn rmm(bytes: &[u8]) {
    let write = |log: &Log, out: &mut Vec<u8>| pool_trace::rmm::write(log, out);
    reads(bytes, |bytes| pool_trace::rmm::read(bytes), Some(&write));
}

/// A snapshot of PyTorch.
pub fn torch(bytes: &[u8]) {
    reads(bytes, |bytes| pool_trace::torch::read(bytes), None);
}

/// A trace of any format, plain or compressed, which its first bytes tell.
pub fn any_trace(bytes: &[u8]) {
    reads(bytes, |bytes| pool_trace::read(bytes), None);
}

/// The text of a trace of any format, repeated as its first byte says and compressed. It is read as
/// the text itself is, or refused for being too long for its file.
pub fn compressed(bytes: &[u8]) {
    let Some((times, part)) = bytes.split_first() else { return };
    let text = part.repeat(1 << (times % 16));
    if text.len() > 4 << 20 {
        return;
    }
    let file = zstd::stream::encode_all(&text[..], 1).expect("a Vec takes all bytes");
    let limit = text.len().min(readable(file.len()));
    let packed = limited(limit, || pool_trace::read(&file[..]));
    let plain = limited(text.len(), || pool_trace::read(&text[..]));
    match (plain, packed) {
        (Ok(plain), Ok(packed)) => assert_eq!(packed, plain),
        (Err(plain), Err(_)) if text.len() <= readable(0) => assert!(!plain.found.is_empty()),
        (_, Ok(_)) => panic!("only the compressed text was read"),
        (_, Err(_)) => assert!(text.len() > readable(0), "{} bytes", text.len()),
    }
}

/// The first bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

type Writer<'w> = &'w dyn Fn(&Log, &mut Vec<u8>) -> std::io::Result<()>;

/// An error is one line. What was read keeps its operations when it is written and read again.
fn reads(bytes: &[u8], read: impl Fn(&[u8]) -> Result<Log, Malformed>, write: Option<Writer<'_>>) {
    let text = if bytes.starts_with(&ZSTD) { readable(bytes.len()) } else { bytes.len() };
    let log = match limited(text, || read(bytes)) {
        Ok(log) => log,
        Err(error) => {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            return;
        }
    };
    let Some(write) = write else { return };
    let mut written = Vec::new();
    write(&log, &mut written).expect("a Vec takes all bytes");
    let again = read(&written).unwrap_or_else(|error| panic!("{error} in what was written"));
    let kinds = |log: &Log| log.operations.iter().map(|o| (o.kind, o.bytes)).collect::<Vec<_>>();
    assert_eq!(kinds(&again), kinds(&log));
}

/// The words of `BUCKETPOOL_HOST`.
pub fn settings(bytes: &[u8]) {
    pool_host::fuzz_settings(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Err(error) = text.parse::<pool_config::preset::Caching>() {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// A configuration file in TOML or JSON; a pool that it describes serves a request. Its text may be
/// that of a policy too, which is then printed as it is read.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(spec) = limited(text.len(), || text.parse::<PolicySpec>()) {
        assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
    }
    let toml = limited(text.len(), || toml::from_str::<PoolConfig>(text).ok());
    let json = limited(text.len(), || serde_json::from_str::<PoolConfig>(text).ok());
    for config in [toml, json].into_iter().flatten() {
        // A file may ask for any number of blocks ahead; the device has few.
        match config.pool(SimDevice::with_capacity(1 << 20)) {
            Ok(pool) => {
                drop(pool.allocate(1000));
                pool.check();
            }
            Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
        }
    }
}

/// Requests of any sizes, under any granule and limit: refused, or served in full.
pub fn sizes(bytes: &[u8]) {
    let mut words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let mut next = || words.next().unwrap_or(0);
    let mut policies = BucketPolicy::examples();
    let policy = match policies.swap_remove(next() as usize % policies.len()) {
        BucketPolicy::Tiered(_) => BucketPolicy::tiered(&[next(), next(), next()]),
        BucketPolicy::Fit { .. } => BucketPolicy::Fit { alpha: f64::from_bits(next()) },
        other => other,
    };
    let builder = BucketPool::builder(SimDevice::new()).policy(policy).granule(next());
    let builder = builder.reserved_limit(next()).cached_limit(next());
    let first = next();
    let builder = builder.window(first..=next());
    let pool =
        if first % 2 == 0 { builder.build() } else { builder.arena(ArenaConfig::grow()).build() };
    let mut live = Vec::new();
    for _ in 0..8 {
        let bytes = next();
        if let Ok(buffer) = pool.allocate(bytes) {
            assert!(buffer.size() == bytes && buffer.allocated_size() >= bytes);
            live.push(buffer);
        }
        if next() % 2 == 0 {
            live.pop();
        }
        assert_eq!(pool.check().live.blocks, live.len() as u64);
        let stats = pool.stats();
        assert!(stats.requested_bytes <= stats.allocated_bytes, "{stats}");
        assert!(stats.allocated_bytes <= stats.reserved_bytes, "{stats}");
    }
}

/// Runs the files that the command line names, for a build without libFuzzer.
pub fn main(name: &str, target: impl Fn(&[u8])) {
    for file in std::env::args().skip(1) {
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        target(&bytes);
        println!("{name}: {file} passed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn saved_inputs_pass() {
        let targets: [(&str, fn(&[u8])); 9] = [
            ("script", script),
            ("ptrace", ptrace),
            ("rmm", rmm),
            ("torch", torch),
            ("any_trace", any_trace),
            ("compressed", compressed),
            ("settings", settings),
            ("config", config),
            ("sizes", sizes),
        ];
        for (name, target) in targets {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let mut count = 0;
            for entry in std::fs::read_dir(&folder).expect("a corpus for each target") {
                let path = entry.expect("a readable folder").path();
                println!("{}", path.display());
                target(&std::fs::read(path).expect("a readable file"));
                count += 1;
            }
            assert!(count > 0, "no input in {}", folder.display());
        }
    }
}
