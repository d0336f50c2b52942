//! `soak`: whether the pools hold more and more over time.

use crate::input::BadInput;
use crate::place::{RECORDS, root, traces};
use crate::results::progress;
use crate::soak::{Soaked, soak};
use crate::{record, trace};
use clap::Args;
use std::time::Duration;

/// Replays the bundled traces on threads, over pools whose device fails now and then, and checks
/// that reserved bytes, resident memory and file descriptors do not grow once they are warm.
#[derive(Debug, Args)]
pub(super) struct Soak {
    /// How long, in minutes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Threads that share the pools.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// Keep the outcome in pool-bench/records, which adds up over runs.
    #[arg(long)]
    record: bool,
}

impl Soak {
    pub(super) fn run(self, typed: &str) -> Result<String, BadInput> {
        let time = Duration::try_from_secs_f64(60.0 * self.minutes).ok();
        let time = time.filter(|time| !time.is_zero() && self.minutes <= 100_000.0);
        let time = time.ok_or_else(|| {
            BadInput::new(format!("--minutes {}", self.minutes), "minutes, up to 100000")
        })?;
        let files = traces(false)?;
        let all: Result<Vec<_>, _> = files.iter().map(|file| trace::read(file)).collect();
        let run = record::Run::begin(typed, None);
        let bar = progress(time.as_secs(), "seconds");
        let threads = usize::try_from(self.threads).unwrap_or(1);
        let soaked = soak(&all?, threads, time, |seconds| bar.set_position(seconds))?;
        bar.finish_and_clear();
        let growing = soaked.growing();
        if !growing.is_empty() {
            return Err(BadInput::new(growing.join("; "), "figures that stay the same"));
        }
        if self.record {
            let line = serde_json::to_string(&soaked).unwrap_or_default();
            super::recorded(&run, &[line])?;
        }
        let recorded = earlier();
        let all = if self.record { recorded } else { [recorded, vec![soaked.clone()]].concat() };
        let minutes: f64 = all.iter().map(|one| one.soak_minutes).sum();
        let operations: u64 = all.iter().map(|one| one.operations).sum();
        Ok(format!(
            "{:.1} minutes, {} threads, {} rounds, {} operations, {} refused: nothing grows\n\
             reserved bytes {} per hour; resident {}; file descriptors {}\n\
             with all recorded runs: {minutes:.0} minutes, {operations} operations",
            soaked.soak_minutes,
            soaked.threads,
            soaked.rounds,
            soaked.operations,
            soaked.refused,
            soaked.reserved,
            soaked.resident,
            soaked.descriptors,
        ))
    }
}

/// The soaks of all records.
fn earlier() -> Vec<Soaked> {
    let Ok(entries) = std::fs::read_dir(root().join(RECORDS)) else { return Vec::new() };
    let texts = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
}
