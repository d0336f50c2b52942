//! Files that may be compressed with zstd, whose text is not much longer than they are.
//!
//! zstd packs a gigabyte of one repeated line into 30 KB. Each line of a log becomes an operation
//! in memory, so the reader takes only so much text from so many compressed bytes. The bundled
//! traces have 3 to 4 bytes of text for each.

use crate::malformed::Malformed;
use std::io::{self, BufRead, BufReader, Read};
use zstd::stream::read::Decoder;

/// Bytes of text for each compressed byte, at most.
const MAX_TEXT_RATIO: u64 = 100;
/// Bytes of text that a file may have however small it is.
const MIN_TEXT_BYTES: u64 = 1 << 20;

/// The first four bytes of a zstd frame (RFC 8878).
const ZSTD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Returns the contents of a file: decompressed if it begins with a frame of zstd, otherwise as
/// they are.
///
/// # Errors
///
/// A file that cannot be read. Reading the contents fails with a [`Malformed`] once they are more
/// than [`MIN_TEXT_BYTES`] and [`MAX_TEXT_RATIO`] times what was read of the file.
pub(crate) fn open<'s>(source: impl Read + 's) -> Result<Box<dyn BufRead + 's>, Malformed> {
    let mut source = BufReader::new(Counted { source, bytes: 0 });
    let start = source.fill_buf().map_err(|error| Malformed::new(error, "a readable file"))?;
    if !start.starts_with(&ZSTD) {
        return Ok(Box::new(source));
    }
    let decoder = Decoder::with_buffer(source);
    let decoder = decoder.map_err(|error| Malformed::new(error, "a zstd frame"))?;
    Ok(Box::new(BufReader::new(Bounded { decoder, bytes: 0 })))
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
    bytes: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(into)?;
        self.bytes += count as u64;
        let compressed = self.decoder.get_ref().get_ref().bytes;
        if self.bytes > compressed.saturating_mul(MAX_TEXT_RATIO).saturating_add(MIN_TEXT_BYTES) {
            let found = format!("{} bytes in {compressed} compressed bytes", self.bytes);
            let expected = format!(
                "at most {MAX_TEXT_RATIO} for each, and {MIN_TEXT_BYTES}; \
                 `zstd -d` makes a plain file, which may have any size"
            );
            return Err(io::Error::other(Malformed::new(found, expected)));
        }
        Ok(count)
    }
}
