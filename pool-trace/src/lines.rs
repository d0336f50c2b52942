//! Lines of a log whose end may be missing: its program crashed, and what it had not written yet is
//! lost, down to the middle of a line.

use crate::malformed::Malformed;
use std::io::{self, BufRead, Read};

/// The longest line, in bytes. Only the names of call stacks are longer than some hundred bytes; a
/// [`Recorder`](crate::Recorder) writes at most 32 of them in a line.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The expected contents of a file that cannot be read.
const READABLE: &str = "text, plain or compressed with zstd";

/// The error of a file that could not be read.
pub(crate) fn unreadable(error: &io::Error) -> Malformed {
    Malformed::of_read(error, READABLE)
}

/// One line, without its end.
pub(crate) struct Line {
    /// From 1 on.
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// The lines of a log, up to its end or to where it was cut off.
pub(crate) struct Lines<R> {
    source: R,
    number: u64,
    /// Whether the log ends in the middle of a compressed frame or of a line. Writers end each
    /// line, so a last line without an end may lack anything, a digit for example, and is left out.
    pub(crate) is_cut_off: bool,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, number: 0, is_cut_off: false }
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    ///
    /// A line that cannot be read, that is no text, or that is longer than [`MAX_LINE_BYTES`]. A log
    /// that is cut off in a later line than its first is no error.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, Malformed> {
        self.number += 1;
        let (mut bytes, number) = (Vec::new(), self.number);
        let read = self.source.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes);
        let is_ended = bytes.pop_if(|last| *last == b'\n').is_some();
        match read {
            Ok(0) => return Ok(None),
            Ok(length) if !is_ended && length as u64 > MAX_LINE_BYTES => {
                let found = format!("a line of more than {MAX_LINE_BYTES} bytes");
                let expected = format!("lines of at most {MAX_LINE_BYTES} bytes");
                return Err(Malformed::new(found, expected).in_line(number));
            }
            Ok(_) if !is_ended && number > 1 => {
                self.is_cut_off = true;
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && number > 1 => {
                self.is_cut_off = true;
                return Ok(None);
            }
            Err(error) => return Err(unreadable(&error).in_line(number)),
            Ok(_) => {}
        }
        let no_text = |_| Malformed::new("bytes that are no UTF-8", READABLE).in_line(number);
        let text = String::from_utf8(bytes).map_err(no_text)?;
        Ok(Some(Line { number, text }))
    }
}
