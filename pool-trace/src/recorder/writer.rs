//! The thread of a recorder: takes records out of the ring, and writes them compressed.

use super::live::{Buffer, Live, Meaning};
use super::{Event, Mark, Recorded, Shared};
use crate::operation::{Kind, Names, Operation};
use crate::ptrace;
use crate::ticks::Ticks;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long the thread sleeps when the ring is empty.
const PAUSE: Duration = Duration::from_millis(1);
/// Text that is compressed at once, in bytes.
const PORTION: usize = 1 << 16;
/// How often a zstd frame ends, so that the file is whole up to there.
const FRAME: Duration = Duration::from_secs(1);
/// The level of zstd.
const LEVEL: i32 = 1;

/// The writer of one file.
pub(super) struct Writer {
    shared: Arc<Shared>,
    out: zstd::stream::write::Encoder<'static, File>,
    text: String,
    live: Live,
    lanes: HashMap<u64, u32>,
    tags: Names,
    stacks: Names,
    ticks: Ticks,
    /// Ticks of the last operation.
    last: u64,
    /// Whether operations are written.
    writes: bool,
    /// Lost operations that the file knows of.
    lost: u64,
    recorded: Recorded,
    frame: Instant,
}

impl Writer {
    pub(super) fn new(
        file: File,
        source: &str,
        shared: Arc<Shared>,
        writes: bool,
    ) -> io::Result<Self> {
        let out = zstd::stream::write::Encoder::new(file, LEVEL)?;
        let (live, lanes, tags, stacks) = Default::default();
        let text = ptrace::header(source, true);
        let (ticks, last, frame) = (Ticks::new(), crate::ticks::now(), Instant::now());
        let (lost, recorded) = (0, Recorded::default());
        Ok(Self {
            shared,
            out,
            text,
            live,
            lanes,
            tags,
            stacks,
            ticks,
            last,
            writes,
            lost,
            recorded,
            frame,
        })
    }

    /// Writes until the recorder ends.
    pub(super) fn run(mut self) -> io::Result<Recorded> {
        loop {
            let ends = self.shared.ends.load(SeqCst);
            self.ticks.measure();
            let any = self.drain()?;
            if ends && !any {
                break;
            }
            if self.frame.elapsed() > FRAME {
                self.end_frame()?;
            }
            if !any {
                std::thread::park_timeout(PAUSE);
            }
        }
        self.out.write_all(self.text.as_bytes())?;
        self.out.finish()?.sync_data()?;
        Ok(self.recorded)
    }

    /// Writes what the ring has. Returns whether it had any.
    fn drain(&mut self) -> io::Result<bool> {
        let mut any = false;
        while let Some(words) = self.shared.ring.pop() {
            any = true;
            match Mark::of_words(words) {
                Some(mark) => self.follow(mark),
                None => self.write(Event::of_words(words)),
            }
            if self.text.len() > PORTION {
                self.out.write_all(self.text.as_bytes())?;
                self.text.clear();
                if self.frame.elapsed() > FRAME {
                    self.end_frame()?;
                }
            }
        }
        let lost = self.shared.ring.lost();
        if lost > self.lost {
            (self.lost, self.recorded.lost) = (lost, lost);
            let _ = writeln!(self.text, "#lost,{lost}");
        }
        Ok(any)
    }

    /// Ends the frame, and begins the next.
    fn end_frame(&mut self) -> io::Result<()> {
        self.out.write_all(self.text.as_bytes())?;
        self.text.clear();
        let file = self.out.get_ref().try_clone()?;
        let next = zstd::stream::write::Encoder::new(file, LEVEL)?;
        std::mem::replace(&mut self.out, next).finish()?;
        self.frame = Instant::now();
        Ok(())
    }

    /// Stops to write, or begins again with all that is live.
    fn follow(&mut self, mark: Mark) {
        let writes = mark == Mark::Resume;
        if writes && !self.writes {
            let live = self.live.all();
            let _ = writeln!(self.text, "#baseline,{}", live.len());
            self.recorded.baseline += live.len() as u64;
            for Buffer { id, event } in live {
                self.write_as(Event { ticks: self.last, ..event }, id, Kind::Allocate);
            }
        } else if self.writes && !writes {
            // What is live is written again when the recorder is resumed, so it ends here.
            for Buffer { id, event } in self.live.all() {
                self.write_as(Event { ticks: self.last, ..event }, id, Kind::Free);
            }
            self.live.renumber();
        }
        self.writes = writes;
    }

    fn write(&mut self, event: Event) {
        let meaning = self.live.follow(event);
        if !self.writes {
            return;
        }
        match meaning {
            Meaning::Allocated(id) => self.write_as(event, id, Kind::Allocate),
            Meaning::Replaced(before, id) => {
                self.write_as(event, before, Kind::Free);
                self.write_as(event, id, Kind::Allocate);
            }
            Meaning::Freed(id) => self.write_as(event, id, Kind::Free),
            Meaning::Unknown => self.recorded.unknown += 1,
            Meaning::Refused => self.write_as(event, 0, Kind::Refuse),
        }
    }

    fn write_as(&mut self, event: Event, id: u64, kind: Kind) {
        let lanes = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let lane = *self.lanes.entry(event.stream).or_insert(lanes);
        let tag = self.tag(event.tag);
        let stack = if kind == Kind::Allocate { self.stack(event.stack) } else { 0 };
        let dt_ns = self.ticks.nanoseconds(event.ticks.saturating_sub(self.last));
        self.last = self.last.max(event.ticks);
        let lane = lane.min(ptrace::LANES_MOST - 1);
        let bytes = event.bytes;
        let operation = Operation { kind, id, bytes, lane, dt_ns, tag, stack, line: 0 };
        ptrace::push_line(&mut self.text, &operation, true);
        self.recorded.operations += 1;
    }

    fn tag(&mut self, number: u16) -> u32 {
        let name = pool_core::tag_name(number);
        let (number, is_new) = self.tags.number(name);
        if is_new {
            ptrace::push_name(&mut self.text, "tag", number, name);
        }
        number
    }

    fn stack(&mut self, number: u32) -> u32 {
        let Some(backtrace) = self.shared.take_stack(number) else { return 0 };
        let names = function_names(&backtrace);
        let (number, is_new) = self.stacks.number(&names);
        if is_new {
            ptrace::push_name(&mut self.text, "stack", number, &names);
        }
        number
    }
}

/// Returns the names of the functions of a backtrace, from the one that called the pool outwards,
/// joined by `;`. The standard library gives no access to frames, so they are read from its text:
/// `  4: function` and, on the next line, `at file:line`.
fn function_names(backtrace: &Backtrace) -> String {
    let text = backtrace.to_string();
    let names = text.lines().filter_map(|line| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<u32>().is_ok().then(|| name.replace([';', ','], " "))
    });
    let names: Vec<String> = names.collect();
    let own = |name: &String| name.starts_with("pool_core::") || name.starts_with("<pool_core::");
    // Frames that the compiler inlined have names without a crate, so the last of ours counts.
    let first = names.iter().rposition(own).map_or(0, |last| last + 1);
    let outer = names[first..].iter().take(32);
    outer.map(String::as_str).collect::<Vec<_>>().join(";")
}
