//! Programs of every day: git, SQLite, a compiler, and one in C++ with threads.

use super::outcomes::Outcomes;
use super::{Malloc, Program, Run};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the programs that this machine has; says which it lacks.
pub(super) fn programs(root: &Path) -> Vec<Program> {
    let words = root.join("xtask/src/programs/words.cpp");
    let program = |name: &str, tool: &str, run: Box<Run>| {
        let is_here = Command::new(tool).arg("--version").output().is_ok();
        if !is_here {
            println!("not run: {name}, since there is no program `{tool}`");
        }
        is_here.then(|| Program { name: name.to_owned(), run })
    };
    let all = [
        program("git: commits, a packed clone", "git", Box::new(git)),
        program("sqlite3: inserts, an index, joins", "sqlite3", Box::new(sqlite)),
        program("cc -O2 of 1000 functions", "cc", Box::new(compiler)),
        program("C++: threads, maps, strings", "c++", Box::new(move |m| threads(&words, m))),
    ];
    all.into_iter().flatten().collect()
}

/// Runs a command to its end; returns what it printed.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let said = command.output().map_err(|error| error.to_string())?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(format!("{}: {}: {why}", command.get_program().display(), said.status));
    }
    Ok(said.stdout)
}

/// Names an output by its hash.
fn outcome(name: &str, output: &[u8]) -> (String, String) {
    let hash = Sha256::digest(output);
    let hash = hash.iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    (name.to_owned(), format!("{} bytes, {hash}", output.len()))
}

/// Commits 400 files three times, packs, and clones.
fn git(malloc: &Malloc<'_>) -> Result<Outcomes, String> {
    let run = |args: &[&str]| {
        let mut git = malloc.command("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0"]).args(args);
        git.env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z");
        git.env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z");
        output(&mut git)
    };
    run(&["init", "--quiet", "--initial-branch=main", "."])?;
    for version in 0..3 {
        for file in 0..400_usize {
            let line = format!("line {} of {file}\n", version * file);
            let text = line.repeat(1 + file * 7 % 900);
            let path = malloc.folder.join(format!("file-{file}"));
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        run(&["add", "."])?;
        run(&["commit", "--quiet", "-m", &format!("version {version}")])?;
    }
    run(&["repack", "-a", "-d", "--quiet", "--threads=1"])?;
    run(&["clone", "--quiet", "--no-local", ".", "clone"])?;
    let log = run(&["-C", "clone", "log", "--format=%H %T", "--stat"])?;
    Ok([outcome("log of the clone", &log), outcome("fsck", &run(&["-C", "clone", "fsck"])?)].into())
}

/// Fills tables, indexes them, and joins them.
fn sqlite(malloc: &Malloc<'_>) -> Result<Outcomes, String> {
    let script = "
        pragma cache_size = -65536;
        create table a (id integer primary key, name text, size integer);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000)
            insert into a select i, 'name ' || (i * 7919 % 100003), i * 31 % 4099 from n;
        create index sizes on a (size);
        create table b as select size, count(*) as many, group_concat(id) as ids
            from a group by size;
        select count(*), sum(length(ids)) from b;
        select a.id, b.many from a join b using (size) where a.id % 1000 = 0 order by a.name;
        delete from a where size < 1000; vacuum;
        select count(*), hex(max(name)) from a; pragma integrity_check;";
    let database = malloc.folder.join("data.db");
    let printed = output(malloc.command("sqlite3").arg(&database).arg(script))?;
    let dump = output(malloc.command("sqlite3").arg(&database).arg(".dump"))?;
    Ok([outcome("answers", &printed), outcome("dump", &dump)].into())
}

/// Compiles a large file with optimization.
fn compiler(malloc: &Malloc<'_>) -> Result<Outcomes, String> {
    let mut source = String::from("typedef struct { double x[8]; int n; } T;\n");
    for number in 0..1000 {
        let _ = writeln!(
            source,
            "double f{number}(T *a, const T *b, int n) {{ double s = {number}; \
             for (int i = 0; i < n; i++) for (int j = 0; j < 8; j++) {{ \
             a[i].x[j] += b[i].x[(j + {number}) % 8] * s; s += a[i].x[j] > {number} ? 1 : \
             a[i].n; }} switch ((int)s % 7) {{ case 1: s *= 2; case 3: s += {number}; break; \
             case 5: return s - n; }} return s; }}"
        );
    }
    let path = malloc.folder.join("large.c");
    fs::write(&path, source).map_err(|error| format!("{}: {error}", path.display()))?;
    output(malloc.command("cc").args(["-O2", "-S", "large.c", "-o", "large.s"]))?;
    let assembly = fs::read(malloc.folder.join("large.s")).map_err(|error| error.to_string())?;
    Ok([outcome("assembly", &assembly)].into())
}

/// Compiles a program in C++ without the library, and runs it.
fn threads(source: &PathBuf, malloc: &Malloc<'_>) -> Result<Outcomes, String> {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-pthread", "-o"]).arg(malloc.folder.join("words"));
    output(compiler.arg(source))?;
    let printed = output(&mut malloc.command("./words"))?;
    Ok([outcome("sums", &printed)].into())
}
