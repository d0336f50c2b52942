//! The results of a command: as tables, as JSON, in a file.
#![expect(clippy::print_stderr, reason = "what was left out is said, wherever the results go")]

use crate::advise::Advised;
use crate::contest::Standing;
use crate::input::BadInput;
use crate::page::{ReportPage, Section, replays, timings};
use crate::replay::{self, Outcome, Settings};
use crate::report;
use crate::rounds::Row;
use crate::spec::NamedPolicy;
use crate::streams::{self, Arrangement};
use crate::trace::{self, Trace};
use crate::{record, timeline};
use bucketpool::limits::CachedLimit;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Debug, Default, Args)]
pub(crate) struct Output {
    /// One JSON object a line instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write to this file instead of standard output.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Also write a report to this file: one HTML page that works from disk.
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
}

/// The results of a command.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) standings: Vec<Standing>,
    pub(crate) outcomes: Vec<Outcome>,
    /// Contenders compared with peers.
    pub(crate) rows: Vec<Row>,
    /// Applications under each malloc.
    pub(crate) applications: Vec<Row>,
    /// Contenders on threads.
    pub(crate) threads: Vec<Row>,
    /// What they counted: objects of JSON.
    pub(crate) counts: Vec<serde_json::Value>,
    /// Result of `advise`, and whether its configuration was written to a file.
    pub(crate) advised: Option<(Advised, bool)>,
    /// Notes on what was left out and why, and on faults of the measurement.
    pub(crate) notes: Vec<String>,
    /// Whether every table is shown.
    pub(crate) all: bool,
}

/// Reads all traces before the first is replayed, so that a bad file wastes no replay.
pub(crate) fn read_all(files: &[PathBuf]) -> Result<Vec<Trace>, BadInput> {
    files.iter().map(|file| trace::read(file)).collect()
}

impl Results {
    /// Replays each trace under each policy. With `leave_out` a replay that this machine has no room
    /// for becomes a note.
    pub(crate) fn replay(
        &mut self,
        files: &[PathBuf],
        policies: &[NamedPolicy],
        settings: Settings,
        leave_out: bool,
    ) -> Result<(), BadInput> {
        let traces = read_all(files)?;
        self.notes.extend(traces.iter().filter_map(Trace::missing));
        let bar = progress((files.len() * policies.len()) as u64, "traces");
        for (file, trace) in files.iter().zip(&traces) {
            match replay::replay_directly(trace, settings.backend) {
                Ok(direct) => self.outcomes.extend(direct),
                Err(bad) if leave_out => {
                    self.notes.push(format!("left out: {bad}"));
                    continue;
                }
                Err(bad) => return Err(bad.in_file(file.display())),
            }
            for policy in policies {
                bar.inc(1);
                let room = replay::check_room(trace, policy, settings);
                if let (Err(bad), true) = (&room, leave_out) {
                    self.notes.push(format!("left out: {bad}"));
                    continue;
                }
                let outcome = room.and_then(|()| replay::replay(trace, policy, settings));
                self.outcomes.push(outcome.map_err(|bad| bad.in_file(file.display()))?);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    pub(crate) fn replay_on_streams(
        &mut self,
        files: &[PathBuf],
        policies: &[NamedPolicy],
        settings: Settings,
    ) -> Result<(), BadInput> {
        let traces = read_all(files)?;
        self.notes.extend(traces.iter().filter_map(Trace::missing));
        let all = files.len() * policies.len() * Arrangement::ALL.len();
        let bar = progress(all as u64, "streams");
        for (file, trace) in files.iter().zip(&traces) {
            for policy in policies {
                for arrangement in Arrangement::ALL {
                    let outcome = streams::replay(trace, policy, settings, arrangement);
                    self.outcomes.push(outcome.map_err(|bad| bad.in_file(file.display()))?);
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    pub(crate) fn json(&self) -> Vec<String> {
        // The objects hold only numbers and strings, which serde_json always accepts.
        fn line(object: &impl Serialize) -> String {
            serde_json::to_string(object).unwrap_or_default()
        }
        let standings = self.standings.iter().map(line);
        let outcomes = self.outcomes.iter().map(line);
        let advised = self.advised.iter().flat_map(|(advised, _)| {
            let choice = line(&json!({ "choice": advised.choice }));
            let lines = advised.advice.iter().map(line).chain(advised.bounds.iter().map(line));
            lines.chain([choice])
        });
        let rows = self.rows.iter().chain(&self.applications).chain(&self.threads).map(line);
        let counts = self.counts.iter().map(line);
        standings.chain(outcomes).chain(rows).chain(counts).chain(advised).collect()
    }

    /// Returns the sections of a page about replays.
    pub(crate) fn sections(
        &self,
        files: &[PathBuf],
        policies: &[(&NamedPolicy, Option<CachedLimit>)],
    ) -> Vec<Section> {
        let traces = read_all(files).unwrap_or_default();
        let bar = progress((traces.len() * policies.len()) as u64, "timelines");
        let mut sections: Vec<Section> = replays::across(&self.outcomes).into_iter().collect();
        for trace in &traces {
            let watched: Vec<_> = policies
                .iter()
                .map(|(policy, limit)| {
                    bar.inc(1);
                    (*policy, timeline::watch(trace, policy, *limit))
                })
                .collect();
            sections.push(replays::trace(trace, &watched, &self.outcomes));
        }
        bar.finish_and_clear();
        sections
    }

    /// Returns the sections of a page about workloads, peers and traces.
    pub(crate) fn page_sections(&self) -> Vec<Section> {
        let parts = [timings::standings(&self.standings), timings::peers(&self.rows)];
        parts.into_iter().flatten().chain(replays::across(&self.outcomes)).collect()
    }

    pub(crate) fn tables(&self) -> String {
        let mut parts = Vec::new();
        if !self.standings.is_empty() {
            parts.extend(report::across_backends(&self.standings));
            if self.all {
                parts.push(report::standings(&self.standings));
            }
        }
        let (streams, plain): (Vec<_>, Vec<_>) =
            self.outcomes.iter().cloned().partition(|outcome| outcome.streams.is_some());
        // Next to workloads, sums over the traces are enough if there are several traces.
        let several = plain.iter().any(|outcome| outcome.trace != plain[0].trace);
        if !plain.is_empty() && (self.all || self.standings.is_empty() || !several) {
            parts.push(report::replays(&plain));
        }
        if several {
            parts.push(report::policies(&plain));
        }
        if !streams.is_empty() {
            parts.push(report::on_streams(&streams));
        }
        if let Some((advised, has_file)) = &self.advised {
            parts.push(report::advised(advised, *has_file));
        }
        if !self.rows.is_empty() {
            parts.extend(report::contenders(&self.rows));
            parts.extend(report::over_cases(&self.rows));
        }
        parts.extend(report::applications::tables(&self.applications));
        parts.extend(report::threads::times(&self.threads));
        parts.extend(report::threads::counts(&self.counts));
        parts.join("\n\n")
    }
}

impl Output {
    /// Checks that the output files can be written, before the results are computed.
    pub(crate) fn probe(&self) -> Result<(), BadInput> {
        self.out.iter().chain(&self.report).try_for_each(|path| probe(path))
    }

    /// Puts the results out, and then the report, if the user requested one. `title` and `typed`
    /// are those of the report.
    pub(crate) fn finish(
        &self,
        results: &Results,
        (title, typed): (&str, &str),
        sections: impl FnOnce() -> Vec<Section>,
    ) -> Result<String, BadInput> {
        let text = self.put(results)?;
        let report = self.report(typed, title, sections, &results.notes);
        report.inspect_err(|_| eprintln!("{text}"))?; // else the results are lost
        Ok(text)
    }

    /// Writes the report, if the user requested one.
    pub(crate) fn report(
        &self,
        typed: &str,
        title: &str,
        sections: impl FnOnce() -> Vec<Section>,
        notes: &[String],
    ) -> Result<(), BadInput> {
        let Some(path) = &self.report else { return Ok(()) };
        let (machine, date) = record::machine_and_date();
        let (title, command, notes) = (title.to_owned(), typed.to_owned(), notes.to_vec());
        let page = ReportPage { title, command, date, machine, notes, sections: sections() };
        page.write(path)
    }

    pub(crate) fn put(&self, results: &Results) -> Result<String, BadInput> {
        for note in &results.notes {
            eprintln!("{note}");
        }
        let text = if self.json { results.json().join("\n") } else { results.tables() };
        let Some(path) = &self.out else { return Ok(text) };
        if let Err(error) = fs::write(path, format!("{text}\n")) {
            eprintln!("{text}"); // else the results are lost
            return Err(unwritable(path, &error));
        }
        Ok(String::new())
    }
}

/// Checks that a file can be written.
pub(crate) fn probe(path: &Path) -> Result<(), BadInput> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| unwritable(path, &error))?;
    if is_new {
        let _ = fs::remove_file(path); // an empty file would look like results
    }
    Ok(())
}

pub(crate) fn unwritable(path: &Path, error: &io::Error) -> BadInput {
    BadInput::new(format!("{}: {error}", path.display()), "a file that can be written")
}

/// Returns a progress bar for long work.
pub(crate) fn progress(steps: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:22} {wide_bar} {pos}/{len} {elapsed}");
    ProgressBar::new(steps)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what.to_owned())
}
