//! `PostgreSQL`: many short transactions, and a session with large queries that stays.

use super::session::{Session, client};
use super::{Run, Scale, first_of};
use crate::preload::Malloc;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where Debian installs the versions.
const VERSIONS: &str = "/usr/lib/postgresql";
/// What the session runs, over `rows` rows.
const QUERIES: &str = "
SET work_mem = '64MB';
SELECT setseed(0.5);
CREATE TEMP TABLE t AS SELECT i, md5(i::text) AS word, random() AS x FROM generate_series(1, :rows) i;
SELECT count(*) FROM (SELECT sum(x) OVER (PARTITION BY i % 1000 ORDER BY word) FROM t) s;
SELECT count(DISTINCT word) FROM t;
SELECT length(string_agg(word, ',' ORDER BY x)) FROM t;
SELECT count(*) FROM t a JOIN t b ON a.word = b.word;
SELECT length(jsonb_object_agg(word, x)::text) FROM t WHERE i % 4 = 0;
SELECT length(array_agg(word ORDER BY word)::text) FROM t;
";
/// What the session says behind the last query.
const DONE: &str = "done";

/// The newest version that is installed.
pub(super) fn find(scale: Scale) -> Result<Box<Run>, String> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path()).max().unwrap_or_else(|| VERSIONS.into());
    let bin = newest.join("bin");
    first_of(&[bin.join("postgres")])?;
    first_of(&[bin.join("pgbench")])?;
    let owner = owner()?;
    Ok(Box::new(move |malloc, folder| run(malloc, folder, &bin, owner, scale)))
}

/// The user that the server runs as: it refuses to run as root.
fn owner() -> Result<Option<(u32, u32)>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let found = user(&users, "postgres").map(Some);
    found.ok_or_else(|| "there is no user `postgres`, and it refuses to run as root".into())
}

/// The numbers of a user and its group, in the format of `/etc/passwd`.
fn user(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = users.lines().find(|line| line.split(':').next() == Some(name))?.split(':');
    Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn run(
    malloc: &Malloc,
    folder: &Path,
    bin: &Path,
    owner: Option<(u32, u32)>,
    scale: Scale,
) -> Result<super::Used, String> {
    if let Some((user, group)) = owner {
        let given = chown(folder, Some(user), Some(group));
        given.map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let command = |program: &str| {
        let mut command = Command::new(bin.join(program));
        command.current_dir(folder);
        if let Some((user, group)) = owner {
            command.uid(user).gid(group);
        }
        command
    };
    let data: PathBuf = folder.join("data");
    let mut made = command("initdb");
    made.args(["--no-sync", "--auth=trust", "--username=postgres", "-D"]).arg(&data);
    client(made)?;
    let mut server = command("postgres");
    server.arg("-D").arg(&data).arg("-k").arg(folder);
    // Without the waits for the disk, and without work at times of its own choice.
    for setting in ["listen_addresses=", "fsync=off", "autovacuum=off"] {
        server.args(["-c", setting]);
    }
    server.stdout(Stdio::null()).stdin(Stdio::null());
    let mut session = Session::start(malloc, server, folder)?;
    let connected = |program: &str| {
        let mut command = command(program);
        command.arg("-h").arg(folder).args(["-U", "postgres"]);
        command
    };
    session.wait_until(|| client(connected("pg_isready")).is_ok())?;
    let mut shell = None;
    let work = |_: &mut Session| {
        let bench = |arguments: &[&str]| {
            let mut command = connected("pgbench");
            command.args(arguments).arg("postgres");
            client(command)
        };
        let transactions = scale.of(1000).to_string();
        bench(&["-i", "-q", "-s", "2"])?;
        bench(&["-n", "-c", "4", "-t", &transactions])?;
        bench(&["-n", "-c", "4", "-S", "-M", "prepared", "-t", &scale.of(10_000).to_string()])?;
        shell = Some(Shell::start(connected("psql"), scale.of(200_000))?);
        Ok(())
    };
    let mut used = session.work(work, false)?;
    used.rested_bytes = Some(session.rest(scale.rest()));
    drop(shell);
    session.interrupt()?;
    Ok(used)
}

/// A session with the server that has run the queries and stays connected until it is dropped.
struct Shell(std::process::Child);

impl Shell {
    fn start(mut psql: Command, rows: usize) -> Result<Self, String> {
        psql.args(["-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", &format!("rows={rows}")]);
        psql.arg("postgres").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let fault = |error: std::io::Error| format!("psql: {error}");
        let mut shell = Self(psql.spawn().map_err(fault)?);
        if let Some(stdin) = &mut shell.0.stdin {
            writeln!(stdin, "{QUERIES}\\echo {DONE}").map_err(fault)?;
        }
        let lines = shell.0.stdout.take().map(|pipe| BufReader::new(pipe).lines());
        match lines.into_iter().flatten().map_while(Result::ok).find(|line| line == DONE) {
            Some(_) => Ok(shell),
            None => Err("psql: the queries failed".into()),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::user;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres2:x:8:9::/:/bin/sh\n\
                     postgres:x:104:110:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(user(users, "postgres"), Some((104, 110)));
        assert_eq!(user(users, "post"), None);
        assert_eq!(user("postgres:x", "postgres"), None);
    }
}
