//! `soak`: whether the pools hold more and more over time.
#![expect(clippy::print_stderr, reason = "the figures of a run that failed are not lost")]

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
    /// Keep the outcome in pool-bench/records, whatever it is; minutes and operations add up over
    /// runs.
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
        if self.record {
            record::probe(&root().join(RECORDS)).map_err(|error| super::unwritable(&error))?;
        }
        let files = traces(false)?;
        let all: Result<Vec<_>, _> = files.iter().map(|file| trace::read(file)).collect();
        let run = record::Run::begin(typed, None);
        let bar = progress(time.as_secs(), "seconds");
        let threads = usize::try_from(self.threads).unwrap_or(1);
        let soaked = soak(&all?, threads, time, |seconds| bar.set_position(seconds))?;
        bar.finish_and_clear();
        let mut text = soaked.to_string();
        if self.record {
            let line = serde_json::to_string(&soaked).unwrap_or_default();
            let file = super::recorded(&run, &[line]).inspect_err(|_| eprintln!("{text}"))?;
            text = format!("{text}\nrecorded in {RECORDS}/{file}");
        }
        let growing = soaked.growing();
        if !growing.is_empty() {
            eprintln!("{text}");
            return Err(BadInput::new(growing.join("; "), "figures that stay the same"));
        }
        let mut all = earlier();
        if !self.record {
            all.push(soaked);
        }
        let minutes: f64 = all.iter().map(|one| one.soak_minutes).sum();
        let operations: u64 = all.iter().map(|one| one.operations).sum();
        Ok(format!(
            "{text}\nno figure grows by more than it may\n\
             with all recorded runs: {minutes:.0} minutes, {operations} operations",
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
