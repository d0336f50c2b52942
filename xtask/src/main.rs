//! `cargo xtask`: everything that is done to this repository.
//!
//! It depends on nothing of the workspace, so that it starts at once; what measures is a separate
//! binary, `pool-bench`, which `bench` and seven other tasks build and run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

mod api;
mod bench;
mod bundle;
mod ci;
mod commits;
mod counts;
mod crates;
mod driver;
mod instructions;
mod layers;
mod links;
mod mutants;
mod outside;
mod packages;
mod platforms;
mod preload;
mod programs;
mod progress;
mod selection;
mod shape;
mod shown;
mod size;
mod source;
mod sources;
mod step;
mod test;
mod tidy;
mod torch;
mod web;
mod wheel;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask bench  [OPTIONS]           workloads against direct allocation, and traces
cargo xtask replay TRACE.. [OPTIONS]   replay traces under each policy
cargo xtask advise TRACE.. [OPTIONS]   which policy these traces ask for, and its configuration
cargo xtask report [TRACE..]           every policy on traces, as one HTML page
cargo xtask convert TRACE FILE         a trace for PyTorch's memory_viz, RMM or Perfetto
cargo xtask record FILE PROGRAM..      record a program; FILE ends in .ptrace.csv.zst
cargo xtask record COMMAND..           run a command and keep what it prints as a record
cargo xtask compare RECORD RECORD      whether one record repeats another
cargo xtask soak [OPTIONS]             whether pools grow over time, while device calls fail
cargo xtask run PROGRAM [ARGUMENT..]   run any program with libbucketpool.so as its malloc
cargo xtask install FOLDER             copy libbucketpool.so and bucketpool-run there
cargo xtask programs [--deep] [--only NAME]  with our malloc and with the C library's
cargo xtask wheel                      build and install the Python package, and run its tests
cargo xtask torch [TEST-NAME..]        PyTorch's CUDA build on a double of the driver, no GPU
cargo xtask test                       format, tests, examples, doc tests: a few minutes
cargo xtask ci [--rest] [--deep] [--only STEP]  test, and then everything else that CI runs
cargo xtask api [--write]              the public items beside their listings in docs/api
cargo xtask mutants [--shard K/N | --since [REV]]  changes in the code that no test sees
cargo xtask gpu-bundle [--try]         what a machine with a GPU needs for its tests and benches
cargo xtask web                        the WebGPU tests in Node; fetches what they need
cargo xtask size [--root FOLDER]        lines of code, the largest type, the ways of a request
cargo xtask tidy [--release] [--commits RANGE]  layers, names, links, lengths, commits

`cargo xtask TASK --help` lists the OPTIONS of a task that has them.";

/// Bad input, as for most Unix tools.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let root = root();
    let alone = ["web", "wheel"];
    if let [task, further, ..] = args.as_slice()
        && alone.contains(&task.as_str())
    {
        if further == "--help" || further == "-h" {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        eprintln!("error: `{further}` behind `{task}`; expected nothing there");
        return ExitCode::from(BAD_INPUT);
    }
    if let [task, file, program @ ..] = args.as_slice()
        && task == "record"
        && preload::is_file(file)
    {
        return preload::record(&root, std::path::Path::new(file), program);
    }
    match args.first().map(String::as_str) {
        Some(
            "bench" | "replay" | "advise" | "report" | "convert" | "record" | "compare" | "soak",
        ) => bench::run(&root, &args),
        Some("run") => preload::run(&root, &args[1..]),
        Some("install") => preload::install(&root, &args[1..]),
        Some("api") => api::run(&root, &args[1..]),
        Some("mutants") => mutants::run(&root, &args[1..]),
        Some("programs") => programs::run(&root, &args[1..]),
        Some("test") => test::run(&root, &args[1..]),
        Some("ci") => ci::run(&root, &args[1..]),
        Some("gpu-bundle") => bundle::run(&root, &args[1..]),
        Some("web") => web::run(&root),
        Some("wheel") => wheel::run(&root),
        Some("torch") => torch::run(&root, &args[1..]),
        Some("size") => size::run(&root, &args[1..]),
        Some("tidy") => tidy::run(&root, &args[1..]),
        None | Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Some(other) => {
            let tasks = "bench, replay, advise, report, convert, record, compare, soak, run, \
                         install, programs, wheel, torch, test, ci, api, mutants, gpu-bundle, web, size, tidy";
            eprintln!("error: task `{other}`; expected one of {tasks}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// The root of the repository that cargo runs this task in. The path of the build is the last
/// resort: two clones that share a target folder share this program too.
fn root() -> PathBuf {
    let built_in = env!("CARGO_MANIFEST_DIR");
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| built_in.into());
    let here = PathBuf::from(here);
    here.parent().unwrap_or(&here).to_path_buf()
}
