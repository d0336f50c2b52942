//! memcached, with a client of ours: values of 10 bytes to 100 KiB are set and read.

use super::session::Session;
use super::{Run, Scale, first_of};
use crate::preload::Malloc;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Connections that take turns.
const CONNECTIONS: usize = 16;
/// Requests that a connection sends before it reads the answers.
const AT_ONCE: usize = 50;
/// Values that are set in turns.
const KEYS: usize = 60_000;
/// The longest value.
const LONGEST: usize = 100 << 10;

/// The server.
pub(super) fn find(scale: Scale) -> Result<Box<Run>, String> {
    let server = first_of(&[PathBuf::from("/usr/bin/memcached")])?;
    let run = move |malloc: &Malloc, folder: &Path| {
        let socket = folder.join("socket");
        let mut command = Command::new(&server);
        command.arg("-s").arg(&socket).args(["-m", "256", "-t", "2"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command.stdout(Stdio::null()).stdin(Stdio::null());
        let mut session = Session::start(malloc, command, folder)?;
        session.wait_until(|| UnixStream::connect(&socket).is_ok())?;
        let work = |_: &mut Session| {
            load(&socket, scale.of(400_000)).map_err(|error| format!("client: {error}"))
        };
        let mut used = session.work(work, false)?;
        used.rested_bytes = Some(session.rest(scale.rest()));
        session.interrupt()?;
        Ok(used)
    };
    Ok(Box::new(run))
}

/// Sets values, and reads as many, over connections in turns. At the end all values are dropped.
fn load(socket: &Path, requests: usize) -> io::Result<()> {
    let connect = || UnixStream::connect(socket).map(BufReader::new);
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect::<Result<_, _>>()?;
    let value = vec![b'v'; LONGEST];
    let mut random = SmallRng::seed_from_u64(63);
    for turn in 0..requests.div_ceil(2 * AT_ONCE) {
        let connection = &mut connections[turn % CONNECTIONS];
        let keys: Vec<usize> = (0..AT_ONCE).map(|_| random.random_range(0..KEYS)).collect();
        let mut sent = Vec::new();
        for key in &keys {
            // Short values are more frequent, as in a cache of a website.
            let bytes = 10 << random.random_range(0..14_u32);
            let bytes = random.random_range(bytes / 2..bytes).min(LONGEST);
            write!(sent, "set key{key} 0 0 {bytes} noreply\r\n")?;
            sent.extend_from_slice(&value[..bytes]);
            sent.extend_from_slice(b"\r\n");
        }
        for key in &keys {
            write!(sent, "get key{key}\r\n")?;
        }
        let mut writer = connection.get_ref().try_clone()?;
        // The answers are read while the requests are written, or both sides would wait.
        std::thread::scope(|scope| {
            let written = scope.spawn(move || writer.write_all(&sent));
            for _ in &keys {
                read_value(connection)?;
            }
            written.join().map_err(|_| io::Error::other("a thread of the client"))?
        })?;
    }
    let Some(last) = connections.first_mut() else { return Ok(()) };
    last.get_mut().write_all(b"flush_all\r\n")?;
    let mut line = String::new();
    last.read_line(&mut line)?;
    if line == "OK\r\n" { Ok(()) } else { Err(io::Error::other(line)) }
}

/// Reads the answer to a `get`: a value or none. Returns its length.
fn read_value(connection: &mut impl BufRead) -> io::Result<Option<usize>> {
    let wrong = |line: &str| io::Error::other(format!("the server said `{}`", line.trim()));
    let mut line = String::new();
    connection.read_line(&mut line)?;
    if line == "END\r\n" {
        return Ok(None);
    }
    let bytes = line.strip_prefix("VALUE ").and_then(|rest| rest.split_whitespace().nth(2));
    let bytes: usize = bytes.and_then(|it| it.parse().ok()).ok_or_else(|| wrong(&line))?;
    let mut value = vec![0; bytes + 2];
    connection.read_exact(&mut value)?;
    line.clear();
    connection.read_line(&mut line)?;
    let is_right = value[..bytes].iter().all(|byte| *byte == b'v') && line == "END\r\n";
    if is_right { Ok(Some(bytes)) } else { Err(wrong(&line)) }
}

#[cfg(test)]
mod tests {
    use super::read_value;

    #[test]
    fn answers_are_values_or_none_and_all_else_is_told() {
        let mut said = "VALUE key1 0 3\r\nvvv\r\nEND\r\nEND\r\nERROR\r\n".as_bytes();
        assert_eq!(read_value(&mut said).unwrap(), Some(3));
        assert_eq!(read_value(&mut said).unwrap(), None);
        assert!(read_value(&mut said).unwrap_err().to_string().contains("ERROR"));
        let mut wrong = "VALUE key1 0 3\r\nvxv\r\nEND\r\n".as_bytes();
        assert!(read_value(&mut wrong).is_err());
    }
}
