//! A build in a few lines: what is built, how far it is, and what the compiler has to say.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two lines that say how far a build is.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs a build of cargo. A build that has nothing to do prints nothing. Another one says what is
/// built, at most every ten seconds how many crates it has begun, and what the compiler says.
/// Returns whether it succeeded.
pub(crate) fn build(what: &str, command: Command) -> bool {
    show(what, command, &mut |line| eprintln!("{line}")).unwrap_or_else(|error| {
        eprintln!("error: {what}: cargo did not start: {error}");
        false
    })
}

fn show(what: &str, mut command: Command, say: &mut dyn FnMut(&str)) -> io::Result<bool> {
    // Colours would stand in front of the words that are looked for.
    command.env("CARGO_TERM_COLOR", "never").stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (start, mut crates, mut said_at) = (Instant::now(), 0_u32, Instant::now());
    for line in
        child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n'))
    {
        let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
        if is_silent(&line) {
            continue;
        }
        if !line.trim_start().starts_with("Compiling ") {
            say(&line);
            continue;
        }
        if crates == 0 {
            say(&format!("building {what}, which may take some minutes the first time"));
        }
        crates += 1;
        if said_at.elapsed() > PAUSE {
            say(&format!("  {crates} crates in {} s", start.elapsed().as_secs()));
            said_at = Instant::now();
        }
    }
    let is_built = child.wait()?.success();
    if crates > 0 && is_built {
        say(&format!("built {what} in {} s", start.elapsed().as_secs()));
    }
    Ok(is_built)
}

/// Whether a line of cargo tells neither progress nor what is wrong.
fn is_silent(line: &str) -> bool {
    let silent = ["Finished ", "Downloading ", "Downloaded ", "Updating ", "Locking "];
    silent.iter().any(|word| line.trim_start().starts_with(word))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[expect(clippy::unwrap_used, reason = "a test")]
    fn said(script: &str) -> (bool, Vec<String>) {
        let (mut command, mut lines) = (Command::new("sh"), Vec::new());
        command.args(["-c", script]);
        let is_built = show("it", command, &mut |line| lines.push(line.to_owned())).unwrap();
        (is_built, lines)
    }

    #[test]
    fn a_build_that_has_nothing_to_do_is_silent() {
        assert_eq!(said("echo '    Finished `dev` profile' >&2"), (true, Vec::new()));
    }

    #[test]
    fn crates_are_counted_and_what_the_compiler_says_is_shown() {
        let (is_built, lines) = said("for i in 1 2 3; do echo '   Compiling a v1' >&2; done");
        assert!(is_built && lines[0].starts_with("building it, "), "{lines:?}");
        assert!(lines.len() == 2 && lines[1].starts_with("built it in "), "{lines:?}");
        let (is_built, lines) = said("echo '  Compiling a' >&2; echo 'error: no' >&2; exit 1");
        assert!(!is_built && lines[1..] == ["error: no"], "{lines:?}");
    }
}
