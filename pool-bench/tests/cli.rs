//! The command line: each bad input gives one line on stderr and exit status 2.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEAD: &str = "#ptrace,1\nop,id,size,lane,dt_ns\n";

fn pool_bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pool-bench")).args(args).output().unwrap()
}

/// Writes a file in a folder of this test.
fn file(name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, contents).unwrap();
    path
}

/// Returns the answer to bad input without the folder, which differs between machines.
fn refusal(args: &[&str]) -> String {
    let output = pool_bench(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    stderr.trim_end().replace(&format!("{}/cli/", env!("CARGO_TARGET_TMPDIR")), "")
}

fn refused_trace(name: &str, contents: impl AsRef<[u8]>) -> String {
    refusal(&["replay", file(name, contents).to_str().unwrap()])
}

#[test]
fn broken_traces_are_named_with_file_line_and_what_was_expected() {
    let csv = |lines: &str| format!("{HEAD}{lines}");
    let noise: Vec<u8> =
        (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
    let cut = zstd::encode_all(csv(&"a,0,100,0,0\n".repeat(1000)).as_bytes(), 3).unwrap();
    let cases = [
        refusal(&["replay", "no/such/file.ptrace.csv.zst"]),
        refused_trace("noise.ptrace.csv.zst", &noise),
        refused_trace("noise.ptrace.csv", &noise),
        refused_trace("cut.ptrace.csv.zst", &cut[..cut.len() / 2]),
        refused_trace("letter.ptrace.csv", csv("a,0,100,0,0\na,1,1x0,0,0\n")),
        refused_trace("letter_id.ptrace.csv", csv("a,zero,100,0,0\n")),
        refused_trace("letter_lane.ptrace.csv", csv("a,0,100,x,0\n")),
        refused_trace("negative.ptrace.csv", csv("a,0,-100,0,0\n")),
        refused_trace("unknown.ptrace.csv", csv("a,0,100,0,0\nf,7,,0,0\n")),
        refused_trace("twice.ptrace.csv", csv("a,0,100,0,0\nf,0,,0,0\nf,0,,0,0\n")),
        refused_trace("again.ptrace.csv", csv("a,0,100,0,0\na,0,100,0,0\n")),
        refused_trace("completed.ptrace.csv", csv("a,0,100,0,0\nd,0,,0,0\n")),
        refused_trace("short.ptrace.csv", csv("a,0,100\n")),
        refused_trace("op.ptrace.csv", csv("q,0,100,0,0\n")),
        refused_trace("huge.ptrace.csv", csv("a,0,140737488355329,0,0\n")),
        refused_trace("version.ptrace.csv", "#ptrace,3\n"),
        refused_trace("columns.ptrace.csv", "#ptrace,1\nop,id,bytes,lane,dt_ns\na,0,1,0,0\n"),
        refused_trace("mark.ptrace.csv", format!("\u{feff}{HEAD}a,0,1,0,0\n")),
        refused_trace("empty.ptrace.csv", ""),
        refused_trace("headers_only.ptrace.csv", HEAD),
    ];
    insta::assert_snapshot!(cases.join("\n"));
}

#[test]
fn broken_arguments_are_named_with_what_was_expected() {
    let trace = file("arguments.ptrace.csv", format!("{HEAD}a,0,100,0,0\na,1,5000,0,0\n"));
    let trace = trace.to_str().unwrap();
    let cases = [
        refusal(&["replay", trace, "--policy", "exact,best"]),
        refusal(&["replay", trace, "--policy", "fit:none"]),
        refusal(&["replay", trace, "--capacity", "4999"]),
        refusal(&["replay", trace, "--capacity", "1x"]),
        refusal(&["replay", trace, "--cached-limit", "lots"]),
        refusal(&["replay", trace, "--cached-limit", "-1"]),
        refusal(&["replay", trace, "--backend", "host", "--capacity", "1M"]),
        refusal(&["replay", trace, "--policy", "arena:pages=64K:slack=20000%"]),
        refusal(&["replay", trace, "--backend", "abacus"]),
        refusal(&["replay", trace, "--out", "/no/such/folder/file"]),
        refusal(&["replay"]),
        refusal(&["bench", "--workload", "tiles,knitting"]),
        refusal(&["bench", "--out", "/no/such/folder/file"]),
        refusal(&["bench", "--fast"]),
    ];
    insta::assert_snapshot!(cases.join("\n"));
}

/// Replays a small trace. Returns the JSON line of the last policy without its time.
fn replayed(name: &str, lines: &str, args: &[&str]) -> serde_json::Value {
    let trace = file(name, format!("{HEAD}{lines}"));
    let output = pool_bench(&[&["replay", trace.to_str().unwrap(), "--json"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    // On the host the first line is direct allocation.
    let mut object: serde_json::Value =
        serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
    assert!(object["ns_per_op"].as_f64().unwrap() >= 0.0);
    object.as_object_mut().unwrap().remove("ns_per_op");
    object
}

#[test]
fn a_refused_request_is_an_oom_and_no_error() {
    let lines = "a,0,600,0,0\na,1,500,0,0\nf,0,,0,0\nf,1,,0,0\na,2,700,0,0\n";
    let exact = replayed("oom.v1.ptrace.csv", lines, &["--policy", "exact", "--capacity", "1K"]);
    insta::assert_snapshot!(serde_json::to_string_pretty(&exact).unwrap());
}

#[test]
fn a_block_in_use_on_another_stream_is_free_when_its_free_completes() {
    let lines = "a,0,600,0,0\nr,0,,1,0\nf,0,,0,0\na,1,600,0,0\nd,0,,0,0\na,2,600,0,0\n\
                 e,,,1,0\nx,,900,0,0\nS,,2097152,0,0\n";
    let exact = replayed("pending.ptrace.csv", lines, &["--policy", "exact"]);
    assert_eq!((&exact["hits"], &exact["misses"]), (&1.into(), &2.into()));
    assert_eq!((&exact["live_peak_bytes"], &exact["ops"]), (&1200.into(), &9.into()));
    assert_eq!(exact["reserved_peak_bytes"], 1200);
}

#[test]
fn a_replay_on_real_memory_counts_the_same_calls() {
    let lines = "a,0,600,0,0\nf,0,,0,0\na,1,600,0,0\nf,1,,0,0\n";
    let on = |arguments: &[&str]| {
        replayed(
            "host.ptrace.csv",
            lines,
            &[&["--policy", "exact", "--backend"], arguments].concat(),
        )
    };
    for (limit, calls) in [("none", 1), ("25%", 2)] {
        let arguments = ["--cached-limit", limit];
        let arguments = if limit == "none" { &[][..] } else { &arguments };
        let [host, sim] = ["host", "sim"].map(|backend| on(&[&[backend], arguments].concat()));
        assert_eq!(
            (&host["backend"], &host["device_allocations"]),
            (&"host".into(), &calls.into())
        );
        assert_eq!((&host["cached_limit"], &sim["cached_limit"]), (&limit.into(), &limit.into()));
        assert_eq!(sim["device_allocations"], calls);
    }
}

#[test]
fn a_replay_on_the_host_has_a_row_of_direct_allocation_and_can_be_recorded() {
    let root = file("recorded/traces/none", "").parent().unwrap().parent().unwrap().to_owned();
    fs::create_dir_all(root.join("pool-bench/records")).unwrap();
    let trace = file("direct.ptrace.csv", format!("{HEAD}a,0,600,0,0\na,1,700,0,0\nf,0,,0,0\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pool-bench"));
    command.args(["replay", trace.to_str().unwrap(), "--backend", "host", "--policy", "exact"]);
    let output = command.args(["--json", "--record"]).env("BUCKETPOOL_ROOT", &root).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("recorded in "), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let direct: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&direct["policy"], &direct["misses"]), (&"direct".into(), &2.into()));
    assert_eq!((&direct["device_allocations"], &direct["device_frees"]), (&2.into(), &1.into()));
    let records = fs::read_dir(root.join("pool-bench/records")).unwrap().flatten();
    let newest = records.map(|entry| entry.path()).max().unwrap();
    assert!(fs::read_to_string(newest).unwrap().contains("\"direct\""));
}

#[test]
fn a_bench_outside_of_a_checkout_is_refused_before_anything_runs() {
    let root = file("nowhere/file", "").parent().unwrap().to_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pool-bench"));
    let output = command.arg("bench").env("BUCKETPOOL_ROOT", root).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.ends_with("expected the folder of the bundled traces; run `cargo xtask bench`\n")
    );
}

#[test]
fn a_preset_brings_its_bounds_unless_one_is_given() {
    let lines = "a,0,600,0,0\na,1,99999999,0,0\n";
    let own = replayed("own.ptrace.csv", lines, &["--policy", "preset:embedding"]);
    assert_eq!((&own["cached_limit"], &own["bypasses"]), (&"none".into(), &1.into()));
    let tiles = replayed("tiles.ptrace.csv", lines, &["--policy", "preset:tile_pipeline"]);
    assert_eq!(tiles["cached_limit"], "4.00 GiB");
    let args = ["--policy", "preset:tile_pipeline", "--cached-limit", "25%"];
    assert_eq!(replayed("given.ptrace.csv", lines, &args)["cached_limit"], "25%");
}

#[test]
fn a_record_that_cannot_be_written_is_told_before_anything_runs() {
    let root = file("root/pool-bench", ""); // a file where the folder of the records should be
    let mut command = Command::new(env!("CARGO_BIN_EXE_pool-bench"));
    command.args(["bench", "--record"]).env("BUCKETPOOL_ROOT", root.parent().unwrap());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: pool-bench/records: "), "{stderr}");
    assert!(stderr.ends_with("; expected a writable folder\n"), "{stderr}");
}

#[test]
fn the_simulated_device_is_compared_by_its_calls() {
    let args = ["bench", "--smoke", "--backend", "sim", "--workload", "tiles", "--policy", "exact"];
    let output = pool_bench(&args);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("on sim `exact` (") && text.contains("fewer device calls"), "{text}");
}

#[cfg(feature = "wgpu")]
#[test]
fn a_device_without_an_adapter_is_an_error_where_it_was_asked_for_and_a_note_elsewhere() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pool-bench"));
        command.args(["bench", "--smoke", "--workload", "equal", "--policy", "exact"]).args(args);
        command.env("VK_DRIVER_FILES", "/nonexistent").output().unwrap()
    };
    let asked = run(&["--backend", "host,wgpu"]);
    let stderr = String::from_utf8(asked.stderr).unwrap();
    assert_eq!(asked.status.code(), Some(2), "{stderr}");
    let last = "error: backend `wgpu`: no wgpu adapter (Vulkan): not supported; expected a Vulkan \
                driver, such as Debian's mesa-vulkan-drivers";
    assert_eq!(stderr.lines().last(), Some(last));
    let not_asked = run(&[]);
    let stderr = String::from_utf8(not_asked.stderr).unwrap();
    assert!(not_asked.status.success());
    assert!(stderr.contains("left out: wgpu, since no wgpu adapter"), "{stderr}");
}

#[test]
fn output_goes_to_a_file_where_one_is_named() {
    let trace = file("out.ptrace.csv", format!("{HEAD}a,0,100,0,0\n"));
    let out = trace.with_extension("jsonl");
    let args = ["replay", trace.to_str().unwrap(), "--json", "--out", out.to_str().unwrap()];
    let output = pool_bench(&args);
    assert!(output.status.success() && output.stdout.is_empty());
    assert_eq!(fs::read_to_string(out).unwrap().lines().count(), 12, "a line for each policy");
}
