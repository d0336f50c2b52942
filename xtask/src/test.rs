//! `cargo xtask test`: what a newcomer runs. A few minutes, with Rust and a C compiler.

use crate::step::{self, Step};
use std::path::Path;
use std::process::ExitCode;

/// All crates that build without wgpu and without Python, but those of the benches and of the
/// preload library: their tests build programs, which takes as long as all others together.
const PACKAGES: &str = "--package pool-core --package pool-sim --package pool-config \
                        --package pool-array --package pool-trace --package pool-host \
                        --package pool-cuda --package cuda-double --package xtask \
                        --package bucketpool";
/// The features of examples; with these, what the tests have built serves.
const EXAMPLES: &str =
    "--features cuda,sim,conformance,trace,metrics,tracing,ndarray,allocator-api2";
/// The crates whose doc tests run here, with their features.
const DOCUMENTED: &str = "--package pool-core --package bucketpool --features \
                          pool-core/check,\
                          bucketpool/cuda,bucketpool/sim,bucketpool/conformance,bucketpool/trace,\
                          bucketpool/metrics,bucketpool/tracing,bucketpool/ndarray,\
                          bucketpool/allocator-api2";
/// The test of what the compiler says of mistakes, which builds the core anew for each.
pub(crate) const MISTAKES: &str = "the_compiler_says_what_is_wrong_and_what_to_do";
/// Their features, without those that need wgpu.
const FEATURES: &str = "--features pool-core/check,pool-array/ndarray,\
                        pool-host/trace,pool-host/allocator-api2,\
                        pool-trace/metrics,pool-trace/tracing,bucketpool/cuda,bucketpool/sim,\
                        bucketpool/conformance,bucketpool/trace,bucketpool/metrics,\
                        bucketpool/tracing,bucketpool/ndarray,bucketpool/allocator-api2";

/// Runs the steps.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    if let [other, ..] = further {
        eprintln!("error: `{other}` behind `test`; expected nothing");
        return ExitCode::from(crate::BAD_INPUT);
    }
    let left_out = "lint, wgpu, Python, the benches, the preload library, doc tests but those of \
                    the core and the facade, mistakes that the compiler tells, other feature sets and \
                    platforms, models, Miri, the sanitizers, fuzz inputs, counts of threads and \
                    of instructions; `cargo xtask ci --rest` runs them";
    step::run(root, &steps(), &[left_out.to_owned()])
}

/// The steps. CUDA runs on the double of libcuda. Lint and most doc tests are left to `ci`: with
/// them a fresh clone takes a minute longer.
pub(crate) fn steps() -> Vec<Step> {
    let example = |name: &str| {
        step::words(&format!(
            "run --quiet --locked --package bucketpool {EXAMPLES} --example {name}"
        ))
    };
    // README's first command as it is there.
    let mut examples = Step::new("examples", "run --quiet --locked --example tiles");
    examples.commands.extend(["custom_backend", "tile_batch"].map(example));
    let tests = format!("{PACKAGES} {FEATURES} --lib --bins --tests --no-fail-fast");
    vec![
        Step::new("format", "fmt --all --check"),
        Step::new("test", &format!("test --locked {tests} -- --skip {MISTAKES}")),
        examples,
        Step::new("doc tests", &format!("test --locked {DOCUMENTED} --doc")),
    ]
}
