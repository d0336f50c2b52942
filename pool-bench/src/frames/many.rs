//! Many uploads and read-backs in one frame: what the last cost beside the first.

use super::device::{Failed, FrameBench, said};
use crate::rounds::{Rounds, Row};
use bucketpool::wgpu::wgpu::Buffer;
use bucketpool::wgpu::{ReadBacks, Unpooled, Uploads, Usage};
use bucketpool::{KIB, MIB};
use std::time::Instant;

/// Calls of a frame, and those at its beginning and end that are measured.
const CALLS: u64 = 1000;
const PART: u64 = 100;
/// Bytes of each.
const EACH: u64 = KIB;

impl FrameBench {
    pub(super) fn many(&self) -> Result<Vec<Row>, Failed> {
        let buffer = self.buffer(CALLS * EACH, Usage::default().flags(), false);
        let uploads = self.device.uploads(256 * KIB, 16 * MIB);
        let backs = self.device.read_backs(16 * MIB);
        let (buffer, uploads, backs) = (&buffer, &uploads, &backs);
        let mut rows = self.parts("1000 uploads in a frame", move |last| {
            self.upload_many(buffer, uploads, last)
        })?;
        rows.extend(self.parts("1000 read-backs in a frame", move |last| {
            self.read_many(buffer, backs, last)
        })?);
        Ok(rows)
    }

    /// Measures the first and the last calls of frames, in turns.
    fn parts(
        &self,
        case: &str,
        frame: impl Fn(bool) -> Result<f64, Failed>,
    ) -> Result<Vec<Row>, Failed> {
        let names = ["the first 100", "the last 100"];
        let (rounds, failures) =
            Rounds::run(&names, self.rounds(), self.seed(), |at| frame(at == 1));
        match failures.into_iter().flatten().next() {
            Some(failed) => Err(failed),
            None => Ok(rounds.rows(case, 0)),
        }
    }

    fn upload_many(&self, to: &Buffer, through: &Uploads, last: bool) -> Result<f64, Failed> {
        let (mut scope, data) = (self.device.scope(), vec![7; 1024]);
        let ns = timed(last, |at| {
            // Every second place, so that no two uploads are neighbours.
            let place = at * 2 % CALLS * EACH;
            scope.upload(through, &Unpooled(to), place, &data).map_err(said)
        })?;
        scope.submit().map_err(said)?;
        self.wait()?;
        Ok(ns)
    }

    fn read_many(&self, from: &Buffer, through: &ReadBacks, last: bool) -> Result<f64, Failed> {
        let (mut scope, mut backs) = (self.device.scope(), Vec::new());
        let ns = timed(last, |at| {
            let back = scope.read_back(through, &Unpooled(from), at * EACH, EACH).map_err(said)?;
            backs.push(back);
            Ok(())
        })?;
        scope.submit().map_err(said)?;
        self.wait()?;
        Ok(ns)
    }
}

/// Makes all calls of a frame. Returns the time of the first part of them, or of the last.
fn timed(last: bool, mut call: impl FnMut(u64) -> Result<(), Failed>) -> Result<f64, Failed> {
    let part = if last { CALLS - PART..CALLS } else { 0..PART };
    (0..part.start).try_for_each(&mut call)?;
    let begin = Instant::now();
    part.clone().try_for_each(&mut call)?;
    let ns = begin.elapsed().as_nanos() as f64;
    (part.end..CALLS).try_for_each(&mut call)?;
    Ok(ns)
}
