//! Random scripts over host memory, with and without an arena, compared with a naive model after
//! each step. Host memory is fast, so this is where long runs are made:
//!
//! ```console
//! $ BUCKETPOOL_OPERATIONS=100000000 \
//!     cargo test --release -p pool-host --test pools -- scripts:: --nocapture
//! ```
//!
//! runs that many operations for each policy. `BUCKETPOOL_SEED` is the first seed. Each hundred
//! operations take one more: runs whose first seeds are nearer to each other run the same scripts.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests; a long run says what it did")]

use pool_core::{ArenaConfig, BucketPolicy, KIB};
use pool_host::HostAllocator;
use pool_sim::conformance::{Script, Subject};

/// Steps of a script, and operations of each policy in a run of the tests.
const STEPS: usize = 100;
const OPERATIONS: u64 = if cfg!(miri) { 300 } else { 20_000 };

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Runs scripts until they have had enough operations.
fn run(name: &str, subject: &Subject<'_, HostAllocator>, policy: Option<&BucketPolicy>) {
    let operations = setting("BUCKETPOOL_OPERATIONS", OPERATIONS);
    let first = setting("BUCKETPOOL_SEED", 0);
    let scripts = operations.div_ceil(STEPS as u64);
    subject.try_random_with(first..first + scripts, STEPS, |script: &mut Script| {
        if let Some(policy) = policy {
            script.settings.policy = policy.clone();
        }
    });
    let last = first + scripts - 1;
    println!(
        "{name}: {} operations, seeds {first} to {last}, 0 violations",
        scripts * STEPS as u64
    );
}

#[test]
fn random_scripts_over_each_policy_agree_with_the_model() {
    std::thread::scope(|scope| {
        for half in BucketPolicy::examples().chunks(2) {
            let half = half.to_vec();
            scope.spawn(move || {
                for policy in half {
                    run(&format!("{policy:?}"), &Subject::new(HostAllocator::new), Some(&policy));
                }
            });
        }
    });
}

#[test]
fn random_scripts_over_each_arena_agree_with_the_model() {
    let arenas = [
        ("grow", ArenaConfig::grow()),
        ("pages", ArenaConfig::pages(4 * KIB, 0.1)),
        ("segments", ArenaConfig::segments(64 * KIB)),
        ("torch", ArenaConfig::torch()),
    ];
    std::thread::scope(|scope| {
        for half in arenas.chunks(2) {
            scope.spawn(move || {
                for (name, config) in half {
                    run(name, &Subject::new(HostAllocator::new).arena(config), None);
                }
            });
        }
    });
}
