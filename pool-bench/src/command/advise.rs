//! `advise`: which policy a trace asks for.
#![expect(clippy::print_stderr, reason = "results are not lost with a file that cannot be written")]

use crate::advise;
use crate::input::BadInput;
use crate::page::advice::advice;
use crate::results::{Output, Results, probe, progress, unwritable};
use crate::trace;
use clap::Args;
use std::fs;
use std::path::PathBuf;

/// Compares every policy with its best parameters on traces, and says which one to take.
#[derive(Debug, Args)]
pub(super) struct Advise {
    /// Traces: .ptrace.csv, an RMM log, or a snapshot of PyTorch; plain or with .zst.
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Write the configuration to this TOML file, which `PoolConfig::pool` loads. Unless
    /// named, it is printed behind the tables.
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

impl Advise {
    pub(super) fn run(self, typed: &str) -> Result<String, BadInput> {
        let traces: Result<Vec<_>, _> = self.trace.iter().map(|file| trace::read(file)).collect();
        let traces = traces?;
        super::say_what_is_missing(&traces);
        self.output.probe()?;
        if let Some(path) = &self.config {
            probe(path)?;
        }
        let bar = progress(advise::ticks(traces.len()), "policies");
        let advised = advise::advise(&traces, || bar.inc(1))?;
        bar.finish_and_clear();
        let written = self.config.as_ref().map_or(Ok(()), |path| {
            let written = fs::write(path, advised.choice.toml());
            written.map_err(|error| unwritable(path, &error))
        });
        let section = advice(&advised);
        // A file that could not be written has its configuration behind the tables.
        let has_file = self.config.is_some() && written.is_ok();
        let results = Results { advised: Some((advised, has_file)), ..Results::default() };
        let text =
            self.output.finish(&results, ("Which policy to take", typed), || vec![section])?;
        written.inspect_err(|_| eprintln!("{text}"))?;
        Ok(text)
    }
}
