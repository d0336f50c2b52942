//! Sizes as people type them: `4K`, `1.5G`, `25%`.

use crate::input::BadInput;
use bucketpool::CachedLimit;

const EXPECTED: &str = "bytes such as 4096, or with K, M or G (binary) such as 64K";
const EXPECTED_SHARE: &str = "bytes such as 64M, or a share of the peak such as 25% or 0.25";

/// Bytes: a number, with K, M or G for binary multiples.
///
/// # Errors
///
/// Anything else, and what does not fit 64 bits.
pub fn bytes(text: &str) -> Result<u64, BadInput> {
    let bad = || BadInput::new(format!("size `{text}`"), EXPECTED);
    let (number, shift) = match text.char_indices().last().ok_or_else(bad)? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(bad);
    }
    let part: f64 = number.parse().map_err(|_| bad())?;
    let bytes = part * f64::from(1_u32 << shift);
    if shift == 0 || !part.is_finite() || part < 0.0 || bytes >= 2_f64.powi(63) {
        return Err(bad());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(bytes.round() as u64)
}

/// A bound on idle blocks: bytes, or a share of the peak.
///
/// # Errors
///
/// Anything else; a negative share.
pub fn cached_limit(text: &str) -> Result<CachedLimit, BadInput> {
    let bad = || BadInput::new(format!("cached limit `{text}`"), EXPECTED_SHARE);
    // A whole number is bytes, and 1.5G has a point too.
    match share(text).filter(|_| text.contains(['%', '.'])) {
        Some(share) => Ok(CachedLimit::OfPeak(share)),
        None => bytes(text).map(CachedLimit::Bytes).map_err(|_| bad()),
    }
}

/// A share: `5%` or `0.05`, not negative.
#[must_use]
pub fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    Some(share).filter(|share| share.is_finite() && *share >= 0.0)
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
