//! Random scripts and those that once found a fault, compared with a naive model after each step,
//! over the simulated device, whose calls fail now and then.
//!
//! A failure prints the shortest script that shows it: save it in `tests/regressions`, where it is
//! run from then on. `BUCKETPOOL_SEED` and `BUCKETPOOL_SCRIPTS` choose other scripts.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{ArenaConfig, BucketPolicy, KIB, ZeroPolicy};
use pool_sim::SimDevice;
use pool_sim::conformance::{Script, Step, Subject};
use std::path::Path;

fn subjects() -> Vec<Subject<'static, SimDevice>> {
    let arenas = [
        ArenaConfig::grow(),
        ArenaConfig::pages(4 * KIB, 0.1),
        ArenaConfig::segments(16 * KIB),
        ArenaConfig::torch(),
        ArenaConfig::segments(16 * KIB).uncached(),
    ];
    let arenas = arenas.iter().map(|config| Subject::simulated().arena(config));
    std::iter::once(Subject::simulated()).chain(arenas).collect()
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn random_scripts_agree_with_the_model() {
    let first = setting("BUCKETPOOL_SEED", 1000);
    let count = setting("BUCKETPOOL_SCRIPTS", if cfg!(miri) { 2 } else { 300 });
    for subject in subjects() {
        subject.try_random(first..first + count, 80);
    }
}

#[test]
fn scripts_that_found_a_fault_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let script: Script = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for subject in subjects() {
            let checked = subject.check(&script);
            assert_eq!(checked, Ok(()), "{} over {subject:?}", path.display());
        }
        count += 1;
    }
    assert!(count > 0, "no script was found");
}

#[test]
fn a_script_is_its_text() {
    for seed in 0..200 {
        let script = Script::random(seed, 50);
        assert_eq!(script.to_string().parse(), Ok(script), "seed {seed}");
    }
    let error = "policy exact\nallocate much\n".parse::<Script>().unwrap_err();
    insta::assert_snapshot!(error);
}

/// A script of any bytes has a step for each three, and the same seed gives the same script.
#[test]
fn any_bytes_are_a_script() {
    assert_eq!(Script::decode(&[]).steps, []);
    assert_eq!(Script::decode(&[255; 6]).steps, [Step::Fail(0, 0)]);
    assert_eq!(Script::random(7, 50), Script::random(7, 50));
    assert_ne!(Script::random(7, 50), Script::random(8, 50));
}

/// Random scripts reach every setting and every step.
#[test]
fn random_scripts_reach_everything() {
    let scripts: Vec<Script> = (0..1000).map(|seed| Script::random(seed, 60)).collect();
    let settings = || scripts.iter().map(|script| &script.settings);
    for zero in [ZeroPolicy::Never, ZeroPolicy::OnReturn, ZeroPolicy::OnAllocate] {
        assert!(settings().any(|settings| settings.zero == zero), "{zero:?}");
    }
    for policy in BucketPolicy::examples() {
        assert!(settings().any(|settings| settings.policy == policy), "{policy:?}");
    }
    assert!(settings().any(|settings| settings.reserved.is_some()));
    assert!(settings().any(|settings| settings.bucket.is_some()));
    let names = scripts.iter().flat_map(|script| &script.steps).map(|step| {
        let text = step.to_string();
        text.split(' ').next().unwrap_or_default().to_owned()
    });
    let names: std::collections::BTreeSet<String> = names.collect();
    assert_eq!(names.len(), 12, "{names:?}");
}
