//! The file of a recorder: compressed if its name ends in `.zst`, otherwise plain text.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use zstd::stream::write::Encoder;

/// The level of zstd.
const LEVEL: i32 = 1;

pub(crate) enum Sink {
    Compressed(Encoder<'static, Arc<File>>),
    Plain(File),
}

impl Sink {
    /// Takes a file that was created at `path`.
    pub(crate) fn new(file: File, path: &Path) -> io::Result<Self> {
        match path.extension().is_some_and(|extension| extension == "zst") {
            true => Ok(Self::Compressed(Encoder::new(Arc::new(file), LEVEL)?)),
            false => Ok(Self::Plain(file)),
        }
    }

    /// Makes the file whole up to here: ends the frame of zstd, and begins the next.
    pub(crate) fn end_frame(&mut self) -> io::Result<()> {
        let Self::Compressed(out) = self else { return Ok(()) };
        let next = Encoder::new(out.get_ref().clone(), LEVEL)?;
        std::mem::replace(out, next).finish().map(drop)
    }

    /// Ends the file, and waits until the system has written it.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Compressed(out) => out.finish()?.sync_data(),
            Self::Plain(file) => file.sync_data(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Compressed(out) => out.write(bytes),
            Self::Plain(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Compressed(out) => out.flush(),
            Self::Plain(file) => file.flush(),
        }
    }
}
