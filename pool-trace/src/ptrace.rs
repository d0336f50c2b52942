//! The format `.ptrace.csv`, plain or in zstd frames. docs/traces.md tells it.
//!
//! A line each operation. Version 1 has the columns `op,id,size,lane,dt_ns`; version 2 has `tag`
//! and `stack` too, whose names stand in `#tag,NUMBER,NAME` and `#stack,NUMBER,NAMES` lines.

use crate::decompress;
use crate::lines::{Line, Lines};
use crate::malformed::{Malformed, start_of};
use crate::operation::{Kind, Log, Operation};
use std::fmt::Write as _;
use std::io::{self, BufRead, Read, Write};

/// Largest size in a trace, in bytes: what a process can address today.
pub const SIZE_LIMIT: u64 = 1 << 47;
/// Lanes have numbers below this.
pub const LANES_MOST: u32 = 1 << 16;

const COLUMNS: &str = "op,id,size,lane,dt_ns";
const COLUMNS_2: &str = "op,id,size,lane,dt_ns,tag,stack";

/// Reads a trace, plain or compressed with zstd.
///
/// ```
/// let text = "#ptrace,1\n#source,doc\nop,id,size,lane,dt_ns\na,0,4096,0,0\nf,0,,0,12\n";
/// let log = pool_trace::ptrace::read(text.as_bytes())?;
/// assert_eq!((log.source.as_str(), log.operations.len()), ("doc", 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The first line that breaks the format, that is longer than a mebibyte, or that cannot be read; a
/// compressed file whose text is more than a mebibyte and 100 times as long as the file. A last zstd frame or line that is
/// cut off is no error: [`Log::is_cut_off`].
pub fn read(source: impl Read) -> Result<Log, Malformed> {
    read_lines(decompress::open(source)?)
}

fn read_lines(source: impl BufRead) -> Result<Log, Malformed> {
    let (mut log, mut lines) = (Log::default(), Lines::new(source));
    while let Some(Line { number, text }) = lines.next()? {
        read_line(&mut log, text.trim_end(), number).map_err(|error| error.in_line(number))?;
    }
    log.is_cut_off = lines.is_cut_off;
    Ok(log)
}

fn read_line(log: &mut Log, line: &str, at: u64) -> Result<(), Malformed> {
    if let Some(header) = line.strip_prefix('#') {
        return read_header(log, header);
    }
    let first = log.operations.is_empty();
    if first && (line == COLUMNS || line == COLUMNS_2) {
        return Ok(());
    }
    if first && line.trim_start_matches('\u{feff}').starts_with(['o', '#']) {
        let what = format!("`{}` before the first operation", start_of(line));
        return Err(Malformed::new(what, format!("the line `#ptrace,1`, then `{COLUMNS}`")));
    }
    // A line of commas has more fields than are kept.
    let fields: Vec<&str> = line.split(',').take(8).collect();
    let (op, id, size, lane, dt, tag, stack) = match fields[..] {
        [op, id, size, lane, dt] => (op, id, size, lane, dt, "", ""),
        [op, id, size, lane, dt, tag, stack] => (op, id, size, lane, dt, tag, stack),
        _ => {
            let what = format!("{} fields in `{}`", line.split(',').count(), start_of(line));
            return Err(Malformed::new(what, format!("5: {COLUMNS}, or 7: {COLUMNS_2}")));
        }
    };
    let mut operation = Operation { line: at, ..Operation::default() };
    operation.dt_ns = optional("dt_ns", dt)?;
    let lane = u32::try_from(optional("lane", lane)?).ok().filter(|lane| *lane < LANES_MOST);
    operation.lane =
        lane.ok_or_else(|| Malformed::new("lane beyond 65535", "dense ids of lanes"))?;
    operation.tag = known("tag", tag, log.tags.len())?;
    operation.stack = known("stack", stack, log.stacks.len())?;
    operation.kind = match op {
        "a" => Kind::Allocate,
        "f" => Kind::Free,
        "d" => Kind::FreeCompleted,
        "r" => Kind::Use,
        "e" => Kind::Event,
        "x" => Kind::Refuse,
        "S" => Kind::DeviceAllocate,
        "s" => Kind::DeviceFree,
        _ => {
            let what = format!("op `{}`", start_of(op));
            return Err(Malformed::new(what, "one of a, f, d, r, e, x, S, s"));
        }
    };
    if has_id(operation.kind) {
        operation.id = number("id", id)?;
    }
    if has_size(operation.kind) {
        operation.bytes = number("size", size)?;
        // A refused request may be of any size.
        if operation.bytes > SIZE_LIMIT && operation.kind != Kind::Refuse {
            let what = format!("size {}", operation.bytes);
            return Err(Malformed::new(what, "at most 2^47 bytes"));
        }
    }
    log.operations.push(operation);
    Ok(())
}

fn has_id(kind: Kind) -> bool {
    matches!(kind, Kind::Allocate | Kind::Free | Kind::FreeCompleted | Kind::Use)
}

fn has_size(kind: Kind) -> bool {
    matches!(kind, Kind::Allocate | Kind::Refuse | Kind::DeviceAllocate | Kind::DeviceFree)
}

/// Reads a line that starts with `#`. Lines of unknown names are comments.
fn read_header(log: &mut Log, header: &str) -> Result<(), Malformed> {
    let (name, value) = header.split_once(',').unwrap_or((header, ""));
    match name {
        "ptrace" if value != "1" && value != "2" => {
            Err(Malformed::new(format!("version `{value}`"), "version 1 or 2"))
        }
        "source" => {
            value.clone_into(&mut log.source);
            Ok(())
        }
        "tag" => name_of(value, "tag", &mut log.tags),
        "stack" => name_of(value, "stack", &mut log.stacks),
        "lost" => {
            log.lost = number("lost", value)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn name_of(value: &str, what: &str, names: &mut Vec<String>) -> Result<(), Malformed> {
    let expected = || format!("`#{what},{},NAME`", names.len() + 1);
    let (at, name) = value.split_once(',').ok_or_else(|| {
        Malformed::new(format!("`#{what},{}` without a name", start_of(value)), expected())
    })?;
    if number(what, at)? != names.len() as u64 + 1 {
        return Err(Malformed::new(format!("{what} {}", start_of(at)), expected()));
    }
    names.push(name.to_owned());
    Ok(())
}

fn known(what: &str, text: &str, names: usize) -> Result<u32, Malformed> {
    let at = optional(what, text)?;
    if at > names as u64 {
        return Err(Malformed::new(format!("{what} {at}"), format!("a `#{what}` line before it")));
    }
    Ok(u32::try_from(at).unwrap_or(0))
}

fn optional(name: &str, text: &str) -> Result<u64, Malformed> {
    if text.is_empty() { Ok(0) } else { number(name, text) }
}

fn number(name: &str, text: &str) -> Result<u64, Malformed> {
    let bad = |_| Malformed::new(format!("{name} `{}`", start_of(text)), "a number");
    text.parse().map_err(bad)
}

/// Writes a trace as text.
///
/// # Errors
///
/// The error of the writer.
///
/// ```
/// use pool_trace::{Kind, Log, Operation, ptrace};
///
/// let operation = Operation { kind: Kind::Allocate, bytes: 64, ..Operation::default() };
/// let log = Log { operations: vec![operation], ..Log::default() };
/// let mut text = Vec::new();
/// ptrace::write(&log, &mut text)?;
/// assert_eq!(ptrace::read(&text[..])?.without_lines(), log);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(log: &Log, out: &mut impl Write) -> io::Result<()> {
    let extended = log.operations.iter().any(|one| one.tag > 0 || one.stack > 0);
    let mut text = header(&log.source, extended);
    for (names, what) in [(&log.tags, "tag"), (&log.stacks, "stack")] {
        for (at, name) in (1..).zip(names.iter()) {
            push_name(&mut text, what, at, name);
        }
    }
    for operation in &log.operations {
        push_line(&mut text, operation, extended);
        if text.len() > 1 << 16 {
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    if log.lost > 0 {
        let _ = writeln!(text, "#lost,{}", log.lost);
    }
    out.write_all(text.as_bytes())
}

/// Returns the lines before the first operation.
pub(crate) fn header(source: &str, extended: bool) -> String {
    let (version, columns) = if extended { (2, COLUMNS_2) } else { (1, COLUMNS) };
    format!("#ptrace,{version}\n#source,{}\n{columns}\n", source.replace(['\n', '\r'], " "))
}

/// Adds the line that names a tag or a stack.
pub(crate) fn push_name(text: &mut String, what: &str, number: u32, name: &str) {
    let _ = writeln!(text, "#{what},{number},{}", name.replace(['\n', '\r'], " "));
}

/// Adds the line of an operation.
pub(crate) fn push_line(text: &mut String, operation: &Operation, extended: bool) {
    let Operation { kind, id, bytes, lane, dt_ns, tag, stack, .. } = *operation;
    let letter = match kind {
        Kind::Allocate => 'a',
        Kind::Free => 'f',
        Kind::FreeCompleted => 'd',
        Kind::Use => 'r',
        Kind::Refuse => 'x',
        Kind::Event => 'e',
        Kind::DeviceAllocate => 'S',
        Kind::DeviceFree => 's',
    };
    text.push(letter);
    text.push(',');
    push_if(text, id, has_id(kind));
    text.push(',');
    push_if(text, bytes, has_size(kind));
    text.push(',');
    push_if(text, lane.into(), true);
    text.push(',');
    push_if(text, dt_ns, true);
    if extended {
        text.push(',');
        push_if(text, tag.into(), tag > 0);
        text.push(',');
        push_if(text, stack.into(), stack > 0);
    }
    text.push('\n');
}

fn push_if(text: &mut String, number: u64, is_there: bool) {
    if is_there {
        let _ = write!(text, "{number}");
    }
}
