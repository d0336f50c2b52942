//! `advise`: which policy a trace asks for.

use crate::advise;
use crate::input::BadInput;
use crate::page::advice::advice;
use crate::results::{Output, Results, progress};
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
    /// Write the configuration to this TOML file, which `BucketPool::from_config` loads. Unless
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
        let bar = progress(advise::ticks(traces.len()), "policies");
        let advised = advise::advise(&traces, || bar.inc(1))?;
        bar.finish_and_clear();
        if let Some(path) = &self.config {
            fs::write(path, advised.choice.toml()).map_err(|error| {
                let what = format!("{}: {error}", path.display());
                BadInput::new(what, "a file that can be written")
            })?;
        }
        let sections = || vec![advice(&advised)];
        self.output.report(typed, "Which policy to take", sections, &[])?;
        let has_file = self.config.is_some();
        self.output.put(&Results { advised: Some((advised, has_file)), ..Results::default() })
    }
}
