use super::*;

fn used(seconds: f64, mib: u64, rested_bytes: Option<u64>) -> Used {
    Used { cpu_ns: seconds * 1e9, wall_ns: seconds * 2e9, peak_bytes: mib << 20, rested_bytes }
}

#[test]
fn an_application_has_a_row_for_each_malloc_and_measure() {
    let rounds = |factor: f64, mib| {
        vec![Some(used(factor, mib, Some(5))), Some(used(3.0 * factor, mib, Some(7)))]
    };
    let both = [rounds(2.0, 30), rounds(1.0, 10)];
    let rows = rows("redis", &[OURS, GLIBC], &both, &[vec!["01".into()], vec!["10".into()]]);
    let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    let expected = MEASURES.map(|measure| format!("redis, {measure}"));
    assert_eq!(cases, expected.iter().flat_map(|case| [case, case]).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.rounds == 2 && row.processes == 2));
    // Ratios are within a round, and a median of time is none of bytes.
    assert_eq!(rows[0].times[GLIBC].median.to_string(), "2");
    assert_eq!((rows[0].ns, rows[0].resident_peak_bytes), (Some(4e9), None));
    assert_eq!(rows[4].times[GLIBC].median.to_string(), "3");
    assert_eq!((rows[4].ns, rows[4].resident_peak_bytes), (None, Some(30 << 20)));
    assert_eq!(rows[6].resident_peak_bytes, Some(6));
    assert_eq!(rows[0].orders.len(), 2);
}

#[test]
fn a_failed_run_has_no_figure_and_is_told_in_its_row_alone() {
    let both = [
        vec![None, Some(used(1.0, 1, None))],
        vec![Some(used(1.0, 1, None)), Some(used(2.0, 1, None))],
    ];
    let rows = rows("build", &[OURS, GLIBC], &both, &[]);
    // Nothing rested.
    assert_eq!(rows.len(), 6);
    assert_eq!((rows[0].rounds, rows[0].refused.as_deref()), (1, Some("a run failed")));
    assert_eq!((rows[1].rounds, rows[1].refused.as_deref()), (2, None));
    assert_eq!(rows[0].times[GLIBC].median.to_string(), "0.5");
}

/// Runs `sh` as an application whose work is the lines of a script, under the C library's malloc.
fn shell(script: &str) -> Result<Used, String> {
    let malloc = Malloc { name: GLIBC, library: None, handler: false };
    let folder = Folder::new(script.len()).unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut session = session::Session::start(&malloc, command, &folder.0)?;
    let mut used = session.work(|session| session.wait_for_line("done"), true)?;
    used.rested_bytes = Some(session.rest(Duration::ZERO));
    session.finish()?;
    Ok(used)
}

#[test]
fn a_session_counts_the_time_of_children_that_have_ended() {
    let loops = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let used = shell(&format!("({loops}); echo done; read line; exit 0")).unwrap();
    assert!(used.cpu_ns > 0.0 && used.wall_ns > 0.0 && used.peak_bytes > 0);
    assert!(used.rested_bytes > Some(0));
}

#[test]
fn a_session_that_fails_says_the_last_line_of_its_program() {
    let why = shell("echo some; exit 1").unwrap_err();
    assert!(why.contains("said `some`, not `done`"), "{why}");
    let why = shell("echo done; read line; echo broken >&2; exit 3").unwrap_err();
    assert_eq!(why, "exit status: 3: broken");
}

#[test]
fn a_library_that_is_not_loaded_is_a_failure() {
    // The dynamic linker says so, and goes on.
    let malloc = Malloc { name: OURS, library: Some("/no/such/library.so".into()), handler: false };
    let folder = Folder::new(0).unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "echo done; read line"]).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut session = session::Session::start(&malloc, command, &folder.0).unwrap();
    let why = session.work(|session| session.wait_for_line("done"), true).unwrap_err();
    assert!(why.starts_with("has not loaded /no/such/library.so"), "{why}");
}

#[test]
fn names_of_applications_are_checked_before_anything_runs() {
    let spread = Spread::new(true, 1);
    let asked = ["redis".to_owned(), "oracle".to_owned()];
    let ran = run(true, &asked, None, &spread, &mut Vec::new(), |_| (), |_| ());
    let why = ran.unwrap_err().to_string();
    assert!(why.starts_with("case `oracle`; expected one of redis, postgresql, nginx"), "{why}");
}

#[test]
fn what_a_run_used_is_told_in_one_line() {
    let told = used(1.5, 20, Some(3 << 20)).to_string();
    let expected = "CPU 1.50 s, wall 3.00 s, peak 20.0 MiB, after a rest 3.0 MiB";
    assert_eq!(told, expected);
    let ended = used(1.0, 1, None).to_string();
    assert_eq!(ended, "CPU 1.00 s, wall 2.00 s, peak 1.0 MiB");
}

#[test]
fn a_failed_run_is_told_and_the_others_go_on() {
    let mallocs = [OURS, GLIBC].map(|name| Malloc { name, library: None, handler: false });
    let run = |malloc: &Malloc, folder: &Path| {
        assert!(folder.is_dir());
        if malloc.name == GLIBC { Ok(used(1.0, 1, None)) } else { Err("no memory".to_owned()) }
    };
    let mut failed = Vec::new();
    let (used, drawn) =
        in_turns(&run, &mallocs, 3, 1, |at, used| failed.extend(used.is_err().then_some(at)))
            .unwrap();
    assert_eq!((failed, drawn.len()), (vec![0, 0, 0], 3));
    assert!(used[0].iter().all(Option::is_none) && used[1].iter().all(Option::is_some));
}
