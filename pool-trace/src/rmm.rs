//! The CSV log of RMM's `logging_resource_adaptor`: columns
//! `Thread,Time,Action,Pointer,Size,Stream` (RMM 25.12, `logging_resource_adaptor_impl.cpp`).
//!
//! The log has the time of day without a date, pointers that come again, and requested bytes. It
//! has no events, so a replay of several streams knows no order between them.

use crate::lines::{Line, Lines};
use crate::malformed::{Malformed, start_of};
use crate::operation::{Kind, Log, Operation};
use crate::ptrace::{LANES_MOST, SIZE_LIMIT};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, BufReader, Read, Write};

/// The columns, in RMM's order. A log may have them in another one.
pub const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
const MICROS_A_DAY: u64 = 24 * 60 * 60 * 1_000_000;

/// A line of the log.
struct Row {
    line: u64,
    micros: u64,
    kind: Kind,
    pointer: u64,
    bytes: u64,
    stream: u64,
}

/// Reads a log. Frees of pointers that the log does not know are left out: the log began later. An
/// allocation at a pointer that is in use ends the one before: threads log in another order than
/// they allocate.
///
/// ```
/// let text = "Thread,Time,Action,Pointer,Size,Stream\n\
///             1,10:00:00.000001,allocate,0x100,4096,0x0\n\
///             1,10:00:00.000003,free,0x100,4096,0x0\n";
/// let log = pool_trace::rmm::read(text.as_bytes())?;
/// assert_eq!((log.operations.len(), log.operations[1].dt_ns), (2, 2000));
/// # Ok::<(), pool_trace::Malformed>(())
/// ```
///
/// # Errors
///
/// A missing column or header line, or the first line that breaks the format or is longer than a
/// mebibyte. A last line that is
/// cut off is no error: RMM buffers its log, and a crash loses the end ([`Log::is_cut_off`]).
pub fn read(source: impl Read) -> Result<Log, Malformed> {
    let mut lines = Lines::new(BufReader::new(source));
    let head = lines.next()?.map(|line| line.text).unwrap_or_default();
    let order = order_of(&head)?;
    let mut rows = Vec::new();
    while let Some(Line { number, text }) = lines.next()? {
        if !text.trim().is_empty() {
            rows.push(row(&text, number, order).map_err(|error| error.in_line(number))?);
        }
    }
    let is_cut_off = lines.is_cut_off;
    let streams: BTreeSet<u64> = rows.iter().map(|row| row.stream).collect();
    let lanes: HashMap<u64, u32> = streams.into_iter().zip(0..).collect();
    let mut log = Log { source: "RMM log".into(), is_cut_off, ..Log::default() };
    let (mut live, mut next, mut last) = (HashMap::new(), 0, None);
    for Row { line, micros, kind, pointer, bytes, stream } in rows {
        let lane = lanes[&stream];
        if lane >= LANES_MOST {
            let found = format!("{} streams", lanes.len());
            return Err(Malformed::new(found, "at most 65536").in_line(line));
        }
        let dt_ns = last.map_or(0, |last: u64| since(last, micros)).saturating_mul(1000);
        let mut one = Operation { kind, bytes, lane, dt_ns, line, ..Operation::default() };
        match kind {
            Kind::Allocate => {
                (one.id, next) = (next, next + 1);
                if let Some(id) = live.insert(pointer, one.id) {
                    let end = Operation { kind: Kind::Free, id, bytes: 0, ..one };
                    log.operations.push(end);
                    one.dt_ns = 0;
                }
            }
            Kind::Free => match live.remove(&pointer) {
                Some(id) => (one.id, one.bytes) = (id, 0),
                None => continue, // its time counts to the next operation
            },
            _ => {}
        }
        last = Some(micros);
        log.operations.push(one);
    }
    Ok(log)
}

/// Returns the microseconds from one time of day to a later one. A small step back is another
/// thread's line; a large one is midnight.
fn since(last: u64, now: u64) -> u64 {
    match now.checked_sub(last) {
        Some(micros) => micros,
        None if last < MICROS_A_DAY && last - now > MICROS_A_DAY / 2 => now + MICROS_A_DAY - last,
        None => 0,
    }
}

/// Whether a line is a row of a log in RMM's order of columns.
pub(crate) fn is_row(line: &str) -> bool {
    let fields: Vec<&str> = line.split(',').map(str::trim).take(COLUMNS.len() + 1).collect();
    fields.len() == COLUMNS.len() && kind_of(fields[2]).is_some()
}

fn kind_of(action: &str) -> Option<Kind> {
    match action {
        "allocate" => Some(Kind::Allocate),
        "allocate failure" => Some(Kind::Refuse),
        "free" | "deallocate" => Some(Kind::Free),
        _ => None,
    }
}

/// Returns where each of [`COLUMNS`] is.
fn order_of(head: &str) -> Result<[usize; 6], Malformed> {
    if is_row(head) {
        let found = format!("`{}` without a header line", start_of(head));
        return Err(Malformed::new(found, format!("the line {}", COLUMNS.join(","))).in_line(1));
    }
    let names = || head.trim_start_matches('\u{feff}').split(',').map(str::trim);
    let mut order = [0; 6];
    for (at, column) in order.iter_mut().zip(COLUMNS) {
        let place = names().position(|name| name == column);
        *at = place.ok_or_else(|| {
            let found = format!("no column `{column}` in `{}`", start_of(head));
            Malformed::new(found, format!("the columns {}", COLUMNS.join(","))).in_line(1)
        })?;
    }
    Ok(order)
}

fn row(line: &str, at: u64, order: [usize; 6]) -> Result<Row, Malformed> {
    // Columns beyond the last that is read are not kept.
    let count = order.iter().max().map_or(0, |last| last + 1);
    let fields: Vec<&str> = line.split(',').map(str::trim).take(count).collect();
    let [_, time, action, pointer, size, stream] = order.map(|at| fields.get(at).copied());
    let field = |field: Option<&'_ str>, name: &str| {
        let found = || format!("no `{name}` in `{}`", start_of(line));
        field.map(str::to_owned).ok_or_else(|| Malformed::new(found(), COLUMNS.join(",")))
    };
    let (time, action) = (field(time, "Time")?, field(action, "Action")?);
    let (pointer, size) = (field(pointer, "Pointer")?, field(size, "Size")?);
    let stream = field(stream, "Stream")?;
    let kind = kind_of(&action).ok_or_else(|| {
        let found = format!("action `{}`", start_of(&action));
        Malformed::new(found, "allocate, allocate failure or free")
    })?;
    // A refused request may be of any size.
    let fits = |bytes: &u64| kind == Kind::Refuse || *bytes <= SIZE_LIMIT;
    let bytes = size.parse::<u64>().ok().filter(fits);
    let expected = "a number of bytes, at most 2^47";
    let bytes =
        bytes.ok_or_else(|| Malformed::new(format!("size `{}`", start_of(&size)), expected))?;
    let micros = micros_of(&time);
    let expected = "HH:MM:SS.micros, or seconds";
    let micros =
        micros.ok_or_else(|| Malformed::new(format!("time `{}`", start_of(&time)), expected))?;
    let address = |text: &str, what: &str| {
        let found = || Malformed::new(format!("{what} `{}`", start_of(text)), "a number in hex");
        hex(text).ok_or_else(found)
    };
    let (pointer, stream) = (address(&pointer, "pointer")?, address(&stream, "stream")?);
    Ok(Row { line: at, micros, kind, pointer, bytes, stream })
}

/// Reads a pointer as C++ prints it: `0x1f00`, `0`, or `(nil)`.
fn hex(text: &str) -> Option<u64> {
    match text {
        "(nil)" => Some(0),
        _ => u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok(),
    }
}

/// Reads a time of day in microseconds; a number of seconds, as some logs have, too.
fn micros_of(time: &str) -> Option<u64> {
    let (rest, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut seconds = 0_u64;
    for part in rest.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
    seconds.checked_mul(1_000_000)?.checked_add(digits.parse().ok()?)
}

/// Writes a log. Each allocation has its own pointer. Uses, events and device calls are left out:
/// the format has no place for them. A free that was completed later is written where it was
/// completed.
///
/// # Errors
///
/// The error of the writer.
///
/// ```
/// use pool_trace::{Log, ptrace, rmm};
///
/// let log = ptrace::read("op,id,size,lane,dt_ns\na,0,64,0,0\nf,0,,0,2000\n".as_bytes())?;
/// let mut text = Vec::new();
/// rmm::write(&log, &mut text)?;
/// let again = rmm::read(&text[..])?;
/// assert_eq!(again.without_lines().operations, log.without_lines().operations);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(log: &Log, out: &mut impl Write) -> io::Result<()> {
    // The pointer and the size of each allocation.
    let mut blocks: HashMap<u64, (u64, u64)> = HashMap::new();
    let completed = log.completed_later();
    let (mut text, mut ns) = (format!("{}\n", COLUMNS.join(",")), 0);
    for one in &log.operations {
        ns = one.dt_ns.saturating_add(ns);
        let action = match one.kind {
            Kind::Allocate => "allocate",
            Kind::Refuse => "allocate failure",
            Kind::Free if completed.contains(&one.id) => continue,
            Kind::Free | Kind::FreeCompleted => "free",
            _ => continue,
        };
        let (pointer, bytes) = match one.kind {
            Kind::Refuse => (None, one.bytes),
            Kind::Allocate => {
                let next = (blocks.len() as u64 + 1) << 8;
                let (pointer, bytes) = *blocks.entry(one.id).or_insert((next, one.bytes));
                (Some(pointer), bytes)
            }
            _ => match blocks.get(&one.id) {
                Some((pointer, bytes)) => (Some(*pointer), *bytes),
                None => continue, // allocated before the log began
            },
        };
        let pointer = pointer.map_or_else(|| "(nil)".into(), |pointer| format!("{pointer:#x}"));
        let micros = ns / 1000 % MICROS_A_DAY;
        let seconds = micros / 1_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let (seconds, micros) = (seconds % 60, micros % 1_000_000);
        let _ = writeln!(
            text,
            "0,{hours:02}:{minutes:02}:{seconds:02}.{micros:06},{action},{pointer},{bytes},{:#x}",
            one.lane
        );
    }
    out.write_all(text.as_bytes())
}
