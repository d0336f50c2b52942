//! Questions 1, 6, 7 and 8: programs beside this one, and cases of the bench.

use super::{Inquiry, Refused};
use crate::gpu::contender::{Answer, Contenders, Question};
use crate::gpu::{self, GpuCase};
use crate::rounds;
use serde_json::{Map, Value, json};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Seeds' own figures, which stand beside ours.
const SEED_PAIRS: &str = "seed 004: 50 times cuMemAlloc on 1000 buffers of 1 MiB";
const SEED_RECORD: &str = "seed 004: recordStream itself costs 1 to 5 microseconds";

/// The test program and the examples, which lie beside this one in the bundle.
pub(super) fn tests_and_examples(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let here = std::env::current_exe().map_err(|error| Refused(error.to_string()))?;
    let folder = here.parent().map(std::path::Path::to_path_buf).unwrap_or_default();
    let mut answers = Map::new();
    for name in ["gpu_test", "cuda_tiles", "cuda_embedding", "cuda_monte_carlo"] {
        let mut program = Command::new(folder.join(name));
        let answer = match program.output() {
            Ok(output) => {
                let both = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&both).into_owned();
                let mut last: Vec<&str> = text.lines().rev().take(5).collect();
                last.reverse();
                json!({ "status": output.status.code(), "last": last })
            }
            Err(error) => json!({ "status": null, "last": [error.to_string()] }),
        };
        answers.insert(name.into(), answer);
    }
    asked.gpu.device.context().bind_to_thread()?;
    Ok(answers.into())
}

/// Rows of these cases, all contenders beside the first.
fn rows(asked: &Inquiry<'_>, cases: Vec<GpuCase>, steal_never: bool) -> Result<Value, Refused> {
    let mut contenders: Contenders = gpu::contenders(asked.peers, steal_never)?;
    let mut rows = Vec::new();
    for case in cases {
        rows.extend(gpu::contest(&case, &mut contenders, asked.process));
    }
    drop(contenders);
    asked.gpu.device.context().bind_to_thread()?;
    serde_json::to_value(rounds::pool(vec![rows], &[])).map_err(|e| Refused(e.to_string()))
}

pub(super) fn pairs(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let sizes: &[u64] =
        if asked.process.smoke { &[2 * MIB] } else { &[2 * MIB, 64 * MIB, 1024 * MIB] };
    let mut cases = Vec::new();
    for bytes in sizes {
        for threads in [1, 16].into_iter().filter(|t| *t == 1 || *bytes <= 64 * MIB) {
            let name = format!("pair, {} MiB, {threads} threads", bytes / MIB);
            let question = Question::Pair { bytes: *bytes, threads, pairs: 1 };
            cases.push(GpuCase { name, question, live_peak_bytes: 0 });
        }
    }
    let count = if asked.process.smoke { 50 } else { 1000 };
    let question = Question::Many { count, bytes: MIB, rounds: 1 };
    cases.push(GpuCase { name: format!("{count} x 1 MiB"), question, live_peak_bytes: 0 });
    Ok(json!({ "seed": SEED_PAIRS, "rows": rows(asked, cases, false)? }))
}

/// With the use recorded and without: the difference is what recording costs.
pub(super) fn recorded(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let mut answers = Map::new();
    answers.insert("seed".into(), SEED_RECORD.into());
    for (steal_never, name) in [(false, "StealPolicy::Wait"), (true, "StealPolicy::Never")] {
        let mut contenders: Contenders = gpu::contenders(asked.peers, steal_never)?;
        let mut costs = Map::new();
        for (contender, ask) in &mut contenders {
            let mut one = |recorded| -> Result<f64, Refused> {
                let question = Question::Record { bytes: MIB, pairs: 1, recorded };
                let question = match asked.process.smoke {
                    true => question,
                    false => gpu::lasting(&mut **ask, &question)?,
                };
                let answers: Result<Vec<Answer>, _> = (0..3).map(|_| ask.ask(&question)).collect();
                let mut ns: Vec<f64> = answers?.iter().map(|answer| answer.ns).collect();
                ns.sort_by(f64::total_cmp);
                Ok(ns[1])
            };
            let answer = match (one(false), one(true)) {
                (Ok(without), Ok(with)) => json!({
                    "not_recorded_ns": without, "recorded_ns": with, "recording_ns": with - without,
                }),
                (without, with) => {
                    let refused = without.err().or(with.err());
                    json!({ "failed": refused.map(|refused| refused.to_string()) })
                }
            };
            costs.insert(contender.clone(), answer);
        }
        answers.insert(name.into(), costs.into());
    }
    asked.gpu.device.context().bind_to_thread()?;
    Ok(answers.into())
}

pub(super) fn traces(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let refused = |bad: crate::input::BadInput| Refused(bad.to_string());
    let files = crate::place::traces(asked.process.smoke).map_err(refused)?;
    let traces: Result<Vec<_>, _> = files.iter().map(|file| crate::trace::read(file)).collect();
    let traces = traces.map_err(refused)?;
    let unpacked = gpu::unpacked_of_devices(traces).map_err(refused)?;
    let case = |(trace, file): &(crate::trace::Trace, std::path::PathBuf)| GpuCase {
        name: format!("trace {}", trace.name),
        question: Question::Trace { file: file.clone() },
        live_peak_bytes: trace.live_peak_bytes,
    };
    let answer = rows(asked, unpacked.iter().map(case).collect(), false);
    for (_, file) in unpacked {
        let _ = std::fs::remove_file(file); // only tidying
    }
    answer
}
