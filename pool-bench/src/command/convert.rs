//! `convert`: a trace in the format of another tool.

use crate::input::BadInput;
use crate::spec;
use crate::timeline;
use crate::trace::{self, Trace};
use bucketpool::observe::MemoryMap;
use clap::Args;
use pool_trace::{Log, perfetto, ptrace, rmm, torch};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// Writes a trace in another format, which the name of the new file tells.
#[derive(Debug, Args)]
pub(super) struct Convert {
    /// The trace: .ptrace.csv, an RMM log, or a snapshot of PyTorch; plain or with .zst.
    trace: PathBuf,
    /// The new file: .ptrace.csv, .ptrace.csv.zst, .rmm.csv, .pickle (a snapshot for PyTorch's
    /// `memory_viz`), or .json (counters for Perfetto).
    to: PathBuf,
    /// With .pickle: a policy, whose memory map at the live peak becomes the snapshot's segments.
    #[arg(long)]
    policy: Option<String>,
}

/// The formats, by the end of a file's name.
const FORMATS: [(&str, Format); 5] = [
    (".ptrace.csv", Format::Ptrace),
    (".ptrace.csv.zst", Format::Compressed),
    (".rmm.csv", Format::Rmm),
    (".pickle", Format::Snapshot),
    (".json", Format::Perfetto),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Ptrace,
    Compressed,
    Rmm,
    Snapshot,
    Perfetto,
}

impl Convert {
    pub(super) fn run(self) -> Result<String, BadInput> {
        let name = self.to.to_string_lossy().into_owned();
        let format = FORMATS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| *format);
        let format = format.ok_or_else(|| {
            let ends: Vec<&str> = FORMATS.iter().map(|(end, _)| *end).collect();
            BadInput::new(format!("`{name}`"), format!("a name that ends in {}", ends.join(", ")))
        })?;
        if self.policy.is_some() && format != Format::Snapshot {
            return Err(BadInput::new(format!("`--policy` for {name}"), "a .pickle file"));
        }
        let log = trace::read_log(&self.trace)?;
        let map = match &self.policy {
            Some(policy) => map_at_peak(&log, policy)?,
            None => MemoryMap::default(),
        };
        let unwritable = |error: io::Error| {
            BadInput::new(format!("{name}: {error}"), "a file that can be written")
        };
        let mut out = BufWriter::new(File::create(&self.to).map_err(unwritable)?);
        let written = match format {
            Format::Ptrace => ptrace::write(&log, &mut out),
            Format::Compressed => compressed(&log, &mut out),
            Format::Rmm => rmm::write(&log, &mut out),
            Format::Snapshot => torch::write(&log, &map, &mut out),
            Format::Perfetto => perfetto::write(&log, &mut out),
        };
        written.and_then(|()| out.flush()).map_err(unwritable)?;
        Ok(format!("{} operations in {name}", log.operations.len()))
    }
}

fn compressed(log: &Log, out: &mut impl Write) -> io::Result<()> {
    let mut encoder = zstd::stream::write::Encoder::new(out, 19)?;
    ptrace::write(log, &mut encoder)?;
    encoder.finish().map(drop)
}

fn map_at_peak(log: &Log, policy: &str) -> Result<MemoryMap, BadInput> {
    let trace = Trace::of(log)?;
    let spec = spec::list(policy)?;
    let [spec] = &spec[..] else {
        return Err(BadInput::new(format!("policies `{policy}`"), "one policy"));
    };
    Ok(timeline::map_at_live_peak(&trace, spec))
}
