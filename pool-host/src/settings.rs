//! The settings of an allocator: those of its builder, and those that the environment overrides.

use crate::limits::Memory;
use crate::{stderr, system, tracing};
use std::time::Duration;

/// Name of the environment variable. Each allocator reads it once.
const VARIABLE: &std::ffi::CStr = c"BUCKETPOOL_HOST";

/// The settings of a [`Tcache`](crate::Tcache) or a [`PageHeap`](crate::PageHeap).
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of its own")]
pub(crate) struct Settings {
    /// The cached limit in bytes; 0 for the default that `limits` computes.
    pub(crate) cached_limit: u64,
    /// The most bytes that a thread cache may hold. A page heap has no thread caches.
    pub(crate) thread_limit: u64,
    /// Milliseconds until unneeded cached memory has been given back; 0 for never.
    pub(crate) decay: u64,
    /// Whether large blocks are aligned for huge pages.
    pub(crate) huge_pages: bool,
    /// Whether the memory of a freed large block goes back at once.
    pub(crate) unmaps: bool,
    /// Whether a background thread gives unneeded memory back while the program sleeps.
    pub(crate) background: bool,
    /// Whether a summary goes to stderr when the process exits.
    pub(crate) stats: bool,
    /// Whether it caches, checks or passes requests through.
    pub(crate) mode: Mode,
}

/// The mode of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Cache, but pass requests through if a sanitizer or Valgrind watches the program.
    Auto,
    /// Cache, also under a sanitizer or Valgrind.
    On,
    /// Pass all requests to the inner allocator.
    Off,
    /// Detect heap errors of the program instead of caching; slow. A page heap does not do this.
    Checked,
}

impl Settings {
    /// The settings of an allocator whose builder sets nothing.
    pub(crate) const DEFAULT: Self = Self {
        cached_limit: 0,
        thread_limit: 64 << 20,
        decay: 1000,
        huge_pages: false,
        unmaps: false,
        background: true,
        stats: false,
        mode: Mode::Auto,
    };

    /// Returns a decay time in milliseconds; 0, which means never, for `None`.
    pub(crate) const fn milliseconds(time: Option<Duration>) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "not after 500 million years")]
        match time {
            // A duration of zero becomes the shortest decay, since 0 means never.
            Some(time) if time.as_millis() == 0 => 1,
            Some(time) => time.as_millis() as u64,
            None => 0,
        }
    }

    /// Returns the cached limit in bytes, in a process that has this memory.
    pub(crate) fn limit(&self, memory: Memory) -> usize {
        let is_set = self.cached_limit > 0;
        let limit = if is_set { self.cached_limit } else { memory.cached_limit() };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// Returns whether the allocator passes all requests on: the settings say so, or a sanitizer or
    /// Valgrind watches the program and the settings do not insist.
    pub(crate) fn is_off(&self) -> bool {
        self.mode == Mode::Off || self.mode == Mode::Auto && system::is_watched()
    }

    /// Reports on stderr that `check` has no effect, where blocks are freed without a layout.
    pub(crate) fn report_ineffective(&self) {
        if self.mode == Mode::Checked {
            stderr::say(&[
                b"bucketpool: BUCKETPOOL_HOST: `check` is for programs that have a Tcache; it has no \
                  effect here\n",
            ]);
        }
    }

    /// Returns these settings, overridden by those of the environment.
    ///
    /// An invalid word is reported on stderr and ignored.
    pub(crate) fn with_environment(self) -> Self {
        self.with_words(system::variable(VARIABLE).unwrap_or_default())
    }

    /// Returns these settings, overridden by words.
    pub(crate) fn with_words(self, words: &[u8]) -> Self {
        let mut settings = self;
        for word in words.split(|byte| *byte == b',').filter(|word| !word.is_empty()) {
            if let Err(wrong) = settings.apply(word) {
                let expected = wrong.expected().as_bytes();
                let pieces: [&[u8]; 5] = [
                    b"bucketpool: BUCKETPOOL_HOST: `",
                    word,
                    b"`: ",
                    expected,
                    b". It is ignored.\n",
                ];
                stderr::say(&pieces);
            }
        }
        settings
    }

    /// Applies one word of the variable. Nothing changes if it is wrong.
    fn apply(&mut self, word: &[u8]) -> Result<(), Wrong> {
        match word {
            b"off" => self.mode = Mode::Off,
            b"on" => self.mode = Mode::On,
            b"check" => self.mode = Mode::Checked,
            b"background" => self.background = true,
            b"background=off" => self.background = false,
            b"stats" => self.stats = true,
            b"silent" => tracing::be_silent(),
            b"huge" => self.huge_pages = true,
            b"unmap" => self.unmaps = true,
            _ => {
                let equals = word.iter().position(|byte| *byte == b'=').ok_or(Wrong::Word)?;
                let (name, value) = (&word[..equals], &word[equals + 1..]);
                match name {
                    b"limit" => self.cached_limit = size(value).ok_or(Wrong::Size)?.max(1),
                    b"thread" => self.thread_limit = size(value).ok_or(Wrong::Size)?,
                    b"decay" => self.decay = number(value).ok_or(Wrong::Time)?,
                    b"trace" if tracing::name_file(value) => {}
                    _ => return Err(Wrong::Word),
                }
            }
        }
        Ok(())
    }
}

/// What is wrong with a word of the variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// There is no such word, or it has no such value.
    Word,
    /// It is followed by no size.
    Size,
    /// It is followed by no time.
    Time,
}

impl Wrong {
    /// Returns what was expected, as a sentence without its end.
    fn expected(self) -> &'static str {
        match self {
            Self::Word => {
                "expected off, on, check, background, background=off, huge, unmap, stats, limit=SIZE, \
                 thread=SIZE, decay=MILLISECONDS, or with the feature `trace` trace=FILE and silent"
            }
            Self::Size => "expected a size of 4096 bytes or more, or a number with K, M or G",
            Self::Time => "expected a number of milliseconds, 0 for never",
        }
    }
}

/// Parses a decimal number.
fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a size in bytes, with an optional unit K, M or G (powers of 1024). Refuses a number from
/// 1 to 4095 without a unit, which is far more often meant in MiB.
fn size(text: &[u8]) -> Option<u64> {
    let (last, digits) = text.split_last()?;
    let unit = match last {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => return number(text).filter(|bytes| !(1..4096).contains(bytes)),
    };
    number(digits)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_environment() {
        let mut settings = Settings::DEFAULT;
        for word in ["off", "limit=512M", "thread=64K", "decay=250", "background", "huge", "stats"]
        {
            assert_eq!(settings.apply(word.as_bytes()), Ok(()), "{word}");
        }
        assert!(settings.mode == Mode::Off && settings.background && settings.huge_pages);
        assert!(settings.stats);
        assert!(settings.apply(b"background=off").is_ok() && !settings.background);
        assert_eq!(
            (settings.cached_limit, settings.thread_limit, settings.decay),
            (512 << 20, 64 << 10, 250)
        );
        for word in [
            "",
            "of",
            "limit",
            "limit=",
            "limit=K",
            "background=on",
            "limit=-1",
            "limit=64",
            "thread=4095",
            "limit=99999999999G",
            "x=1",
        ] {
            let expected = if word.contains("limit=") || word.contains("thread=") {
                Wrong::Size
            } else {
                Wrong::Word
            };
            assert_eq!(settings.apply(word.as_bytes()), Err(expected), "{word}");
        }
        assert_eq!(settings.cached_limit, 512 << 20, "a word that is wrong changes nothing");
        for (words, mode) in
            [("on,off", Mode::Off), ("off,check", Mode::Checked), ("off,on", Mode::On)]
        {
            assert_eq!(
                Settings::DEFAULT.with_words(words.as_bytes()).mode,
                mode,
                "the last one wins"
            );
        }
    }
}
