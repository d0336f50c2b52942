//! What a tcache is built with, and what the environment says instead.

use crate::{limits, system};
use std::time::Duration;

/// The variable that is read, once.
const VARIABLE: &std::ffi::CStr = c"BUCKETPOOL_HOST";

/// The settings of a tcache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Cached bytes at most; 0 for what `limits` says.
    pub(crate) cached_limit: u64,
    /// Bytes that a thread may keep to itself.
    pub(crate) thread_lease: u64,
    /// Milliseconds until what nobody needs has gone back; 0 for never.
    pub(crate) decay: u64,
    pub(crate) huge_pages: bool,
    pub(crate) mode: Mode,
}

/// Whether a tcache does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It caches, unless a sanitizer or Valgrind watches the program.
    Auto,
    On,
    Off,
    /// It checks what the program does, and is slow.
    Checked,
}

impl Settings {
    pub(crate) const DEFAULT: Self = Self {
        cached_limit: 0,
        thread_lease: 1 << 20,
        decay: 10_000,
        huge_pages: false,
        mode: Mode::Auto,
    };

    pub(crate) const fn milliseconds(time: Option<Duration>) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "not after 500 million years")]
        match time {
            // A duration of nothing is the shortest there is, not none.
            Some(time) if time.as_millis() == 0 => 1,
            Some(time) => time.as_millis() as u64,
            None => 0,
        }
    }

    /// The bound in bytes.
    pub(crate) fn limit(&self) -> usize {
        let is_set = self.cached_limit > 0;
        let limit = if is_set { self.cached_limit } else { limits::usual_cached_limit() };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// These settings, and what the environment says. What it says wrongly is told on stderr and
    /// left out.
    pub(crate) fn with_environment(self) -> Self {
        let value = system::variable(VARIABLE).unwrap_or_default();
        let mut settings = self;
        for word in value.split(|byte| *byte == b',').filter(|word| !word.is_empty()) {
            if settings.apply(word).is_none() {
                system::say(&[
                    b"bucketpool: BUCKETPOOL_HOST: `",
                    word,
                    b"` is none of off, on, check, limit=SIZE, lease=SIZE, decay=MILLISECONDS; \
                      SIZE is in bytes, or with K, M or G. It is ignored.\n",
                ]);
            }
        }
        settings
    }

    fn apply(&mut self, word: &[u8]) -> Option<()> {
        match word {
            b"off" => self.mode = Mode::Off,
            b"on" => self.mode = Mode::On,
            b"check" => self.mode = Mode::Checked,
            _ => {
                let equals = word.iter().position(|byte| *byte == b'=')?;
                let (name, value) = (&word[..equals], &word[equals + 1..]);
                match name {
                    b"limit" => self.cached_limit = size(value)?.max(1),
                    b"lease" => self.thread_lease = size(value)?,
                    b"decay" => self.decay = number(value)?,
                    _ => return None,
                }
            }
        }
        Some(())
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn size(text: &[u8]) -> Option<u64> {
    let (last, digits) = text.split_last()?;
    let unit = match last {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => return number(text),
    };
    number(digits)?.checked_mul(unit)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_environment() {
        let mut settings = Settings::DEFAULT;
        for word in ["off", "limit=512M", "lease=64K", "decay=250"] {
            assert!(settings.apply(word.as_bytes()).is_some(), "{word}");
        }
        assert_eq!(settings.mode, Mode::Off);
        assert_eq!(
            (settings.cached_limit, settings.thread_lease, settings.decay),
            (512 << 20, 64 << 10, 250)
        );
        for word in
            ["", "of", "limit", "limit=", "limit=K", "limit=-1", "limit=99999999999G", "x=1"]
        {
            assert!(settings.apply(word.as_bytes()).is_none(), "{word}");
        }
        assert_eq!(settings.cached_limit, 512 << 20, "a word that is wrong changes nothing");
    }
}
