//! The thread of a recorder: takes records out of the ring, and writes them.

use super::lanes::{Lanes, SHARED_LANE};
use super::live::{Buffer, Live, Meaning};
use super::sink::Sink;
use super::{Event, Mark, Recorded};
use crate::operation::{Kind, Names, Operation};
use crate::ptrace;
use crate::ring::{Ring, RingSlot};
use crate::ticks::Ticks;
use std::backtrace::Backtrace;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long the thread sleeps when the ring is empty.
const PAUSE: Duration = Duration::from_millis(1);
/// Text that is compressed at once, in bytes.
const PORTION: usize = 1 << 16;
/// Sleeps that the end of a recorder waits for a thread which has taken a slot and not filled it.
const LAST_WAITS: u32 = 100;
/// How often a zstd frame ends, so that the file is whole up to there.
const FRAME: Duration = Duration::from_secs(1);

/// Returns the backtrace of a number and forgets it.
pub(crate) type StackOf<'s> = &'s dyn Fn(u32) -> Option<Backtrace>;

/// The writer of one file.
pub(crate) struct Writer {
    out: Sink,
    text: String,
    live: Live,
    lanes: Lanes,
    tags: Names,
    stacks: Names,
    ticks: Ticks,
    /// Ticks of the last operation.
    last: u64,
    /// Whether operations are written.
    writes: bool,
    recorded: Recorded,
    frame: Instant,
}

impl Writer {
    pub(crate) fn new(out: Sink, source: &str, writes: bool) -> Self {
        let (live, lanes, tags, stacks) = Default::default();
        let text = ptrace::header(source, true);
        let (ticks, last, frame) = (Ticks::new(), crate::ticks::now(), Instant::now());
        let recorded = Recorded::default();
        Self { out, text, live, lanes, tags, stacks, ticks, last, writes, recorded, frame }
    }

    /// Writes what a ring gets, until `ends` is set and the ring is empty.
    pub(crate) fn run<S: Deref<Target = [RingSlot]>>(
        mut self,
        ring: &Ring<S>,
        ends: &AtomicBool,
        stack_of: StackOf<'_>,
    ) -> io::Result<Recorded> {
        let mut waits = 0;
        loop {
            let is_last = ends.load(SeqCst);
            self.ticks.measure();
            let any = self.drain(ring, stack_of)?;
            // A thread may be between taking a slot and filling it.
            if is_last && !any && (ring.unread() == 0 || waits == LAST_WAITS) {
                self.note_lost(ring.lost() + ring.unread());
                break;
            }
            waits += u32::from(is_last && !any);
            if self.frame.elapsed() > FRAME {
                self.end_frame()?;
            }
            if !any {
                std::thread::park_timeout(PAUSE);
            }
        }
        if self.recorded.shared_lane > 0 {
            let _ = writeln!(self.text, "#shared_lane,{}", self.recorded.shared_lane);
        }
        self.out.write_all(self.text.as_bytes())?;
        self.out.finish()?;
        Ok(self.recorded)
    }

    /// Writes what the ring has. Returns whether it had any.
    fn drain<S: Deref<Target = [RingSlot]>>(
        &mut self,
        ring: &Ring<S>,
        stack_of: StackOf<'_>,
    ) -> io::Result<bool> {
        let mut any = false;
        while let Some(words) = ring.pop() {
            any = true;
            if let Some(mark) = Mark::of_words(words) {
                self.follow(mark);
            } else {
                let event = Event::of_words(words);
                // Also while it is paused: what is live then is written when it is resumed.
                let stack = self.stack(event.stack, stack_of);
                self.write(Event { stack, ..event });
            }
            if self.text.len() > PORTION {
                self.out.write_all(self.text.as_bytes())?;
                self.text.clear();
                if self.frame.elapsed() > FRAME {
                    self.end_frame()?;
                }
            }
        }
        self.note_lost(ring.lost());
        Ok(any)
    }

    fn note_lost(&mut self, lost: u64) {
        if lost > self.recorded.lost {
            self.recorded.lost = lost;
            let _ = writeln!(self.text, "#lost,{lost}");
        }
    }

    /// Ends the frame, and begins the next.
    fn end_frame(&mut self) -> io::Result<()> {
        self.out.write_all(self.text.as_bytes())?;
        self.text.clear();
        self.out.end_frame()?;
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
        let lane = self.lanes.lane(event.stream, &self.live);
        self.recorded.shared_lane += u64::from(lane.is_none());
        let lane = lane.unwrap_or(SHARED_LANE);
        let tag = self.tag(event.tag);
        let stack = if kind == Kind::Allocate { event.stack } else { 0 };
        let dt_ns = self.ticks.nanoseconds(event.ticks.saturating_sub(self.last));
        self.last = self.last.max(event.ticks);
        let bytes = event.bytes;
        let operation = Operation { kind, id, bytes, lane, dt_ns, tag, stack, line: 0 };
        ptrace::push_line(&mut self.text, &operation, true);
        self.recorded.operations += 1;
    }

    fn tag(&mut self, number: u16) -> u32 {
        let name = pool_core::observe::tag_name(number);
        let (number, is_new) = self.tags.number(name);
        if is_new {
            ptrace::push_name(&mut self.text, "tag", number, name);
        }
        number
    }

    fn stack(&mut self, number: u32, stack_of: StackOf<'_>) -> u32 {
        let Some(backtrace) = stack_of(number) else { return 0 };
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
