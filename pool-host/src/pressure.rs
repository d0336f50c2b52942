//! Memory pressure: whether processes wait for memory, as the kernel reports it (Linux, PSI,
//! `Documentation/accounting/psi.rst`).
#![cfg_attr(miri, allow(dead_code, reason = "Miri has no such files"))]

use crate::limits::{Path, read};

/// Memory is short from this value on: the part of the last 10 seconds in which some process waited
/// for memory, in hundredths of a percent.
const SHORT: u64 = 10_00;
/// The files of the machine and of the control group at the top of the mount. In a container that
/// is the container's own group.
const FILES: [&[u8]; 2] = [b"/proc/pressure/memory", b"/sys/fs/cgroup/memory.pressure"];
/// The text before the number in the first line of a file.
const BEFORE: &[u8] = b"some avg10=";

/// Returns whether memory is short; false if the system does not report it.
///
/// It reads two files, which takes about 20 us.
pub(crate) fn is_memory_short() -> bool {
    is_short_in(b"")
}

/// Returns whether memory is short by the files below `root`.
fn is_short_in(root: &[u8]) -> bool {
    FILES.iter().any(|file| waited_in(root, file).is_some_and(|waited| waited >= SHORT))
}

/// Returns the part of the last 10 seconds that one file reports, in hundredths of a percent.
fn waited_in(root: &[u8], file: &[u8]) -> Option<u64> {
    let mut text = [0; 256];
    let line = read(&Path::of(&[root, file])?, &mut text)?.strip_prefix(BEFORE)?;
    let number = line.split(|byte| *byte == b' ').next()?;
    let mut parts = std::str::from_utf8(number).ok()?.split('.');
    let whole: u64 = parts.next()?.parse().ok()?;
    let hundredths: u64 = parts.next().filter(|digits| digits.len() == 2)?.parse().ok()?;
    Some(100 * whole + hundredths)
}

#[cfg(all(test, not(any(miri, shuttle))))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Returns whether memory is short if one file has this text.
    fn said(file: &str, text: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        is_short_in(folder.path().to_str().unwrap().as_bytes())
    }

    #[test]
    fn a_tenth_of_the_time_is_much() {
        for file in ["proc/pressure/memory", "sys/fs/cgroup/memory.pressure"] {
            let line = |avg: &str| format!("some avg10={avg} avg60=0.00 avg300=0.00 total=9\n");
            assert!(said(file, &line("10.00")) && said(file, &line("99.12")), "{file}");
            assert!(!said(file, &line("9.99")) && !said(file, &line("0.00")), "{file}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_pressure() {
        for text in ["", "some", "some avg10=", "some avg10=12", "full avg10=99.00 avg60=0.00"] {
            assert!(!said("proc/pressure/memory", text), "{text}");
        }
        assert!(!said("proc/other", "some avg10=99.00 "));
    }
}
