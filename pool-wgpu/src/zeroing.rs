//! What a scope owes to the next owner of its memory: ranges that it zeroes ahead of its commands, and ranges
//! that these fill, which it zeroes only where they do not run.

use crate::looks::look;
use crate::moved::Move;
use crate::written::hash_of;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use wgpu::{Buffer, COPY_BUFFER_ALIGNMENT, CommandEncoder};

/// A range that must read as zeroes before its scope's commands run.
#[derive(Clone, Debug)]
pub(crate) struct ToZero {
    buffer: Buffer,
    bytes: Range<u64>,
}

/// Ranges by the number of their buffer and where they begin, each with a number. Those of one buffer
/// may overlap only where a step that was not submitted is put back.
#[derive(Default)]
struct RangesToZero(BTreeMap<(u64, u64), (ToZero, u64)>);

/// When an upload or a copy of a scope runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Ahead of the commands of its step, and of all that reads its bytes.
    First,
    /// Ahead of the commands of its step, whatever wgpu says of these.
    Ahead,
    /// Behind commands of the scope's encoder, if wgpu takes them.
    WithCommands,
}

/// What a step owes. Where it does not run, all of it is zeroed, and then its moves are made.
#[derive(Default)]
pub(crate) struct Owed {
    /// Zeroed ahead of the step.
    pub(crate) ahead: Vec<ToZero>,
    /// What its commands fill.
    pub(crate) filled: Vec<ToZero>,
    /// What its uploads and copies fill.
    pub(crate) written: Vec<ToZero>,
    pub(crate) moves: Vec<Move>,
}

impl Owed {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { ahead, filled, written, moves } = self;
        ahead.is_empty() && filled.is_empty() && written.is_empty() && moves.is_empty()
    }
}

/// What the present step of a scope owes.
#[derive(Default)]
pub(crate) struct Zeroing {
    /// Ahead of the present step, with the count by then. No scope takes another's: between taking and
    /// submitting, a block of it could come to another scope, whose write is then zeroed.
    ahead: RangesToZero,
    /// What the program's commands fill, with how often the scope's encoder was lent before it was taken.
    promised: RangesToZero,
    /// What uploads and copies of the step fill.
    written: Vec<ToZero>,
    /// Copies of the step into larger buffers.
    moves: Vec<Move>,
    /// How many ranges were added.
    count: u64,
}

impl ToZero {
    /// Whole words, the rounding tail among them.
    pub(crate) fn new(buffer: &Buffer, bytes: Range<u64>) -> Self {
        let end = bytes.end.next_multiple_of(COPY_BUFFER_ALIGNMENT).min(buffer.size());
        Self { buffer: buffer.clone(), bytes: bytes.start..end }
    }

    fn part(&self, bytes: Range<u64>) -> Self {
        Self { buffer: self.buffer.clone(), bytes }
    }

    pub(crate) fn is_of(&self, buffer: &Buffer) -> bool {
        self.buffer == *buffer
    }

    pub(crate) fn record(&self, encoder: &mut CommandEncoder) {
        let Self { buffer, bytes } = self;
        encoder.clear_buffer(buffer, bytes.start, Some(bytes.end - bytes.start));
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl RangesToZero {
    /// Adds a range. Of two that begin alike the longer one stays, with the number of the first.
    fn add(&mut self, zero: ToZero, number: u64) {
        if zero.bytes.is_empty() {
            return;
        }
        look();
        match self.0.entry((hash_of(&zero.buffer), zero.bytes.start)) {
            Entry::Vacant(none) => {
                none.insert((zero, number));
            }
            Entry::Occupied(mut there) => {
                let bytes = &mut there.get_mut().0.bytes;
                bytes.end = bytes.end.max(zero.bytes.end);
            }
        }
    }

    /// Takes the range that begins here, if its number is this or a later one.
    fn take(&mut self, buffer: &Buffer, start: u64, number: u64) -> Option<ToZero> {
        look();
        let key = (hash_of(buffer), start);
        let (zero, added) = self.0.get(&key)?;
        let is_it = zero.is_of(buffer) && *added >= number;
        is_it.then(|| self.0.remove(&key).map(|(zero, _)| zero)).flatten()
    }

    /// Takes these bytes out of the ranges of a buffer. Returns what was in them. Unless it `splits`, a
    /// range with more bytes on both sides stays whole.
    fn cut(&mut self, buffer: &Buffer, bytes: &Range<u64>, splits: bool) -> Vec<ToZero> {
        let (of, mut cut) = (hash_of(buffer), Vec::new());
        while let Some((&key, (zero, _))) = self.0.range((of, 0)..(of, bytes.end)).next_back()
            && zero.bytes.end > bytes.start
        {
            look();
            let there = zero.bytes.clone();
            let inner = there.start.max(bytes.start)..there.end.min(bytes.end);
            if !splits && there.start < inner.start && inner.end < there.end {
                break;
            }
            let Some((zero, number)) = self.0.remove(&key) else { break };
            self.add(zero.part(there.start..inner.start), number);
            self.add(zero.part(inner.end..there.end), number);
            cut.push(zero.part(inner));
        }
        cut
    }

    fn take_of(&mut self, buffer: &Buffer) -> Vec<ToZero> {
        let of = hash_of(buffer);
        let keys = (of, 0)..=(of, u64::MAX);
        self.0.extract_if(keys, |_, _| true).map(|(_, (zero, _))| zero).collect()
    }

    fn take_all(&mut self) -> impl Iterator<Item = ToZero> + use<> {
        std::mem::take(&mut self.0).into_values().map(|(zero, _)| zero)
    }
}

impl Zeroing {
    /// Adds a range to be zeroed ahead of the present step.
    pub(crate) fn add(&mut self, zero: ToZero) {
        self.ahead.add(zero, self.count);
        self.count += 1;
    }

    /// How many ranges were added so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The program promises to fill these bytes, which a request took after so many ranges were added, and after
    /// the scope's encoder was lent so often: they are not zeroed ahead. Where the request has a whole buffer,
    /// the rest of it is. What needs no zeroing is not noted.
    pub(crate) fn promise(&mut self, count: u64, buffer: &Buffer, bytes: &Range<u64>, lent: u64) {
        let Some(zero) = self.ahead.take(buffer, bytes.start, count) else { return };
        let filled = ToZero::new(buffer, bytes.clone());
        if zero.bytes == (0..buffer.size()) {
            self.add(zero.part(filled.bytes.end..zero.bytes.end));
        }
        self.promised.add(filled, lent);
    }

    /// An upload or a copy of the scope fills these bytes. If it runs ahead of all commands, and nothing reads
    /// them before, it is as good as zeroing: they are not zeroed ahead where that leaves no more ranges. Behind
    /// commands it runs if these do, so it fills what they fill.
    pub(crate) fn fill(&mut self, buffer: &Buffer, bytes: &Range<u64>, fill: Fill) {
        for filled in self.promised.cut(buffer, bytes, true) {
            match fill {
                Fill::WithCommands => self.promised.add(filled, 0),
                Fill::First | Fill::Ahead => self.written.push(filled),
            }
        }
        if fill == Fill::First {
            self.written.extend(self.ahead.cut(buffer, bytes, false));
        }
    }

    /// How many bytes from `at` on are zeroed ahead of the step, with some right before.
    pub(crate) fn behind(&self, buffer: &Buffer, at: u64) -> u64 {
        look();
        let of = hash_of(buffer);
        let last = self.ahead.0.range((of, 0)..(of, at)).next_back();
        last.map_or(0, |(_, (zero, _))| zero.bytes.end.saturating_sub(at))
    }

    /// A copy of the step is made in any case.
    pub(crate) fn add_move(&mut self, moved: Move) {
        self.moves.push(moved);
    }

    /// Ends the step, before which the scope's encoder was lent so often: what it owes. What no command can have
    /// filled is zeroed ahead: its memory may serve another owner behind the step. `keeps_promises`: the commands
    /// come later, and no memory serves another before them.
    pub(crate) fn end_step(&mut self, lent: u64, keeps_promises: bool) -> Owed {
        let mut ahead: Vec<ToZero> = self.ahead.take_all().collect();
        let mut filled = Vec::new();
        if !keeps_promises {
            for (zero, before) in std::mem::take(&mut self.promised.0).into_values() {
                if before < lent { filled.push(zero) } else { ahead.push(zero) }
            }
        }
        let (written, moves) = (std::mem::take(&mut self.written), std::mem::take(&mut self.moves));
        Owed { ahead, filled, written, moves }
    }

    /// What is to be zeroed ahead of the present step.
    pub(crate) fn ahead(&self) -> Vec<ToZero> {
        self.ahead.0.values().map(|(zero, _)| zero.clone()).collect()
    }

    /// Takes all of a buffer.
    pub(crate) fn take_of(&mut self, buffer: &Buffer) -> Vec<ToZero> {
        let mut all = self.ahead.take_of(buffer);
        all.append(&mut self.promised.take_of(buffer));
        all.extend(self.written.extract_if(.., |zero| zero.is_of(buffer)));
        all
    }

    /// What runs ahead of the commands was submitted: zeroing, and the copies.
    pub(crate) fn ahead_ran(&mut self) {
        self.ahead = RangesToZero::default();
        self.written.clear();
        self.moves.clear();
    }

    /// The program's commands ran, which filled what it promised.
    pub(crate) fn commands_ran(&mut self) {
        self.promised = RangesToZero::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{Fill, Owed, ToZero, Zeroing};
    use wgpu::{Buffer, BufferDescriptor, BufferUsages, Device};

    fn buffers() -> [Buffer; 2] {
        let (device, _) = Device::noop(&wgpu::DeviceDescriptor::default());
        [(); 2].map(|()| {
            device.create_buffer(&BufferDescriptor {
                label: None,
                size: 1024,
                usage: BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    }

    /// Where the ranges begin and end, the smallest first.
    fn bytes_of(zeroing: &[ToZero]) -> Vec<(u64, u64)> {
        let mut all: Vec<_> =
            zeroing.iter().map(|zero| (zero.bytes.start, zero.bytes.end)).collect();
        all.sort_by_key(|(start, end)| (end - start, *start));
        all
    }

    /// Parts of a piece from 256 to 768, in every way that they may overlap.
    #[test]
    fn each_byte_is_zeroed_unless_it_is_filled() {
        let [buffer, other] = buffers();
        let all =
            (0..8).flat_map(|start| (start..8).map(move |end| (start * 128, (end + 1) * 128)));
        for ((start, end), promised) in all.flat_map(|part| [(part, false), (part, true)]) {
            let mut zeroing = Zeroing::default();
            zeroing.add(ToZero::new(&other, 0..1024));
            let count = zeroing.count();
            zeroing.add(ToZero::new(&buffer, 256..768));
            if promised {
                zeroing.promise(count, &buffer, &(256..768), 0);
            }
            zeroing.fill(&buffer, &(start..end), Fill::First);
            let case = format!("{promised}: {start}..{end}");
            let expected = match (start.max(256), end.min(768)) {
                _ if promised => vec![],
                (start, end) if start >= end => vec![(256, 768)],
                // An upload in the middle does not make two ranges of one.
                (start, end) if start > 256 && end < 768 => vec![(256, 768)],
                (start, end) => vec![(256, start), (end, 768)],
            };
            let mut expected: Vec<_> =
                expected.into_iter().filter(|(start, end)| start < end).collect();
            expected.push((0, 1024));
            assert_eq!(bytes_of(&zeroing.ahead()), expected, "{case}");
            let Owed { ahead, filled, written, .. } = zeroing.end_step(1, false);
            let owed = [ahead, filled, written].concat();
            let owed: u64 = bytes_of(&owed).iter().map(|(a, b)| b - a).sum();
            assert_eq!(owed, 1024 + 512, "{case}: nothing is lost if nothing ran");
        }
    }

    #[test]
    fn what_is_behind_is_of_the_same_range() {
        let [buffer, other] = buffers();
        let mut zeroing = Zeroing::default();
        zeroing.add(ToZero::new(&buffer, 256..512));
        zeroing.add(ToZero::new(&buffer, 512..768)); // another piece
        for (at, behind) in [(256, 0), (260, 252), (512, 0), (516, 252), (768, 0), (1000, 0)] {
            assert_eq!(
                (zeroing.behind(&buffer, at), zeroing.behind(&other, at)),
                (behind, 0),
                "{at}"
            );
        }
    }

    #[test]
    fn a_step_ends_with_what_its_commands_can_have_filled() {
        let [buffer, _] = buffers();
        let mut zeroing = Zeroing::default();
        for (range, lent) in [(0..256, 1), (256..512, 2)] {
            let count = zeroing.count();
            zeroing.add(ToZero::new(&buffer, range.clone()));
            zeroing.promise(count, &buffer, &range, lent);
        }
        zeroing.fill(&buffer, &(0..64), Fill::First);
        let kept = zeroing.end_step(2, true);
        assert!(kept.ahead.is_empty() && kept.filled.is_empty());
        assert_eq!(bytes_of(&kept.written), [(0, 64)]);
        let owed = zeroing.end_step(2, false); // the second was taken behind the commands
        assert_eq!(bytes_of(&owed.filled), [(64, 256)]);
        assert_eq!((bytes_of(&owed.ahead), owed.written.len()), (vec![(256, 512)], 0));
        zeroing.add(ToZero::new(&buffer, 0..256));
        zeroing.fill(&buffer, &(0..64), Fill::First);
        zeroing.ahead_ran();
        assert!(zeroing.end_step(3, false).is_empty());
    }

    #[test]
    fn the_rest_of_a_buffer_is_not_promised() {
        let [buffer, _] = buffers();
        let mut zeroing = Zeroing::default();
        zeroing.add(ToZero::new(&buffer, 0..1024));
        zeroing.promise(0, &buffer, &(0..501), 0);
        assert_eq!(bytes_of(&zeroing.end_step(1, false).ahead), [(504, 1024)]);
        // A range that was there before the request is another owner's.
        zeroing.add(ToZero::new(&buffer, 0..1024));
        zeroing.promise(zeroing.count(), &buffer, &(0..1024), 0);
        assert_eq!(bytes_of(&zeroing.end_step(1, false).ahead), [(0, 1024)]);
    }
}
