//! Files that may be compressed with zstd, whose text is not much longer than they are.
//!
//! zstd packs a gigabyte of one repeated line into 30 KB. Each line of a log becomes an operation
//! in memory, so the reader takes only so much text from so many compressed bytes. The bundled
//! traces have 3 to 4 bytes of text for each. Lines that begin with `#` become no operation: a
//! recorder writes each backtrace as one, and they pack well, since calls repeat.

use crate::malformed::Malformed;
use std::io::{self, BufRead, BufReader, Read};
use zstd::stream::read::Decoder;

/// Bytes of text for each compressed byte, at most.
const MAX_TEXT_RATIO: u64 = 100;
/// Bytes of text that a file may have however small it is.
const MIN_TEXT_BYTES: u64 = 1 << 20;
/// How many bytes of a line that begins with `#` count as one.
const COMMENT_PART: u64 = 16;

/// The first four bytes of a zstd frame (RFC 8878).
const ZSTD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Returns the contents of a file: decompressed if it begins with a frame of zstd, otherwise as
/// they are.
///
/// # Errors
///
/// A file that cannot be read. Reading the contents fails with a [`Malformed`] once they are more
/// than [`MIN_TEXT_BYTES`] and [`MAX_TEXT_RATIO`] times what was read of the file, of lines that begin
/// with `#` a sixteenth counted.
pub(crate) fn open<'s>(source: impl Read + 's) -> Result<Box<dyn BufRead + 's>, Malformed> {
    let mut source = BufReader::new(Counted { source, bytes: 0 });
    let start = source.fill_buf().map_err(|error| Malformed::new(error, "a readable file"))?;
    if !start.starts_with(&ZSTD) {
        return Ok(Box::new(source));
    }
    let decoder = Decoder::with_buffer(source);
    let decoder = decoder.map_err(|error| Malformed::new(error, "a zstd frame"))?;
    let bounded = Bounded { decoder, bytes: 0, comments: 0, line: LineKind::Starts };
    Ok(Box::new(BufReader::new(bounded)))
}

/// A source that counts what was read of it.
struct Counted<R> {
    source: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// A decoder whose output is bounded.
struct Bounded<R: Read> {
    decoder: Decoder<'static, BufReader<Counted<R>>>,
    /// Bytes of lines that do not begin with `#`, and of those that do.
    bytes: u64,
    comments: u64,
    line: LineKind,
}

/// Where in a line a text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Starts,
    /// One that begins with `#`.
    Comment,
    Other,
}

impl<R: Read> Bounded<R> {
    /// Counts a piece of the text, which may begin and end within a line.
    fn count(&mut self, text: &[u8]) {
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            if self.line == LineKind::Starts {
                self.line =
                    if piece.starts_with(b"#") { LineKind::Comment } else { LineKind::Other };
            }
            match self.line {
                LineKind::Comment => self.comments += piece.len() as u64,
                _ => self.bytes += piece.len() as u64,
            }
            if piece.ends_with(b"\n") {
                self.line = LineKind::Starts;
            }
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(into)?;
        self.count(&into[..count]);
        let compressed = self.decoder.get_ref().get_ref().bytes;
        let counted = self.bytes + self.comments / COMMENT_PART;
        if counted > compressed.saturating_mul(MAX_TEXT_RATIO).saturating_add(MIN_TEXT_BYTES) {
            let bytes = self.bytes + self.comments;
            let found = format!("{bytes} bytes in {compressed} compressed bytes");
            let expected = format!(
                "at most {MAX_TEXT_RATIO} for each, and {MIN_TEXT_BYTES}; \
                 `zstd -d` makes a plain file, which may have any size"
            );
            return Err(io::Error::other(Malformed::new(found, expected)));
        }
        Ok(count)
    }
}
