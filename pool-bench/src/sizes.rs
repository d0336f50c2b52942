//! Sizes as people type them: `4K`, `1.5G`, `25%`.

use crate::input::BadInput;
use bucketpool::limits::CachedLimit;
use bucketpool::size::{ShareText, SizeText};

const EXPECTED: &str = "bytes such as 4096, or with K, M or G (binary) such as 64K";
const EXPECTED_SHARE: &str = "bytes such as 64M, or a share of the peak such as 25% or 0.25";

/// Bytes: a number, with K, M or G for binary multiples.
///
/// # Errors
///
/// Anything else, and what does not fit 64 bits.
pub fn bytes(text: &str) -> Result<u64, BadInput> {
    let bytes = text.parse().map(|SizeText(bytes)| bytes);
    bytes.map_err(|_| BadInput::new(format!("size `{text}`"), EXPECTED))
}

/// Bare numbers from 1 to below this are refused where a whole memory is meant: `25` is 25 % or
/// 25 MiB far more often than 25 bytes.
const SMALLEST_BARE: u64 = 4096;

/// The size of a memory: as [`bytes`], but no bare number below 4096.
///
/// # Errors
///
/// As for [`bytes`], and for such a number.
pub fn memory(text: &str) -> Result<u64, BadInput> {
    with_unit(text, "")
}

/// As [`memory`]. `or` is what else than a unit is expected behind a bare number.
fn with_unit(text: &str, or: &str) -> Result<u64, BadInput> {
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    match bytes(text)? {
        bytes if is_bare && (1..SMALLEST_BARE).contains(&bytes) => Err(BadInput::new(
            format!("size `{text}`, which is {text} bytes"),
            format!("a unit, such as {text}M{or}"),
        )),
        bytes => Ok(bytes),
    }
}

/// A bound on cached blocks: bytes, or a share of the peak.
///
/// # Errors
///
/// Anything else; a negative share; a bare number below 4096.
pub fn cached_limit(text: &str) -> Result<CachedLimit, BadInput> {
    let bad = || BadInput::new(format!("cached limit `{text}`"), EXPECTED_SHARE);
    // A whole number is bytes, and 1.5G has a point too.
    match text.parse().ok().filter(|_| text.contains(['%', '.'])) {
        Some(ShareText(share)) => Ok(CachedLimit::OfPeak(share)),
        None if bytes(text).is_err() => Err(bad()),
        None => with_unit(text, &format!(", or a share such as {text}%")).map(CachedLimit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        let read = |text| bytes(text).unwrap();
        assert_eq!((read("4096"), read("64K"), read("1.5M")), (4096, 64 << 10, 3 << 19));
        assert_eq!((read("2g"), read("0")), (2 << 30, 0));
        for bad in ["", "K", "x", "-1", "1.5", "12a", "99999999999G", "1e400K", "nanK", "5T"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bare_number_that_means_no_memory_is_refused_with_what_was_meant() {
        let said = memory("25").unwrap_err().to_string();
        assert_eq!(said, "size `25`, which is 25 bytes; expected a unit, such as 25M");
        let said = cached_limit("25").unwrap_err().to_string();
        let expected = "size `25`, which is 25 bytes; expected a unit, such as 25M, or a share \
                        such as 25%";
        assert_eq!(said, expected);
        assert!(cached_limit("4095").is_err() && cached_limit("64").is_err());
        assert_eq!((memory("4096"), memory("0"), memory("1K")), (Ok(4096), Ok(0), Ok(1024)));
    }

    #[test]
    fn a_cached_limit_is_bytes_or_a_share() {
        assert_eq!(cached_limit("25%"), Ok(CachedLimit::OfPeak(0.25)));
        assert_eq!(cached_limit("0.25"), Ok(CachedLimit::OfPeak(0.25)));
        assert_eq!(cached_limit("1.5G"), Ok(CachedLimit::Bytes(3 << 29)));
        assert_eq!(cached_limit("64M"), Ok(CachedLimit::Bytes(64 << 20)));
        for bad in ["", "%", "-5%", "a", "25 %%"] {
            assert!(cached_limit(bad).is_err(), "{bad}");
        }
    }
}
