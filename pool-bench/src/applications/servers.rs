//! Redis and nginx, with the load generators that come with them.

use super::session::{Session, client};
use super::{Run, Scale, first_of, write};
use crate::place;
use crate::preload::Malloc;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Redis, built with the C library's malloc. Debian's is linked to jemalloc.
pub(super) fn redis(scale: Scale) -> Result<Box<Run>, String> {
    let built = place::root().join("target/programs/redis/src");
    let built = built.canonicalize().unwrap_or(built);
    let server = first_of(&[built.join("redis-server")])?;
    let [benchmark, cli] = ["redis-benchmark", "redis-cli"].map(|name| built.join(name));
    let run = move |malloc: &Malloc, folder: &Path| {
        let socket = folder.join("socket");
        let mut command = Command::new(&server);
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        command.current_dir(folder).stdout(Stdio::null()).stdin(Stdio::null());
        let mut session = Session::start(malloc, command, folder)?;
        let to = |program: &Path, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.arg("-s").arg(&socket).args(arguments);
            client(command)
        };
        session.wait_until(|| to(&cli, &["ping"]).is_ok_and(|said| said.trim() == "PONG"))?;
        let load = |requests: usize, bytes: &str, keys: &str, tests: &str| {
            let requests = scale.of(requests).to_string();
            let arguments = [
                "-q", "-n", &requests, "-d", bytes, "-r", keys, "-c", "20", "-P", "8", "-t", tests,
            ];
            to(&benchmark, &arguments)
        };
        let work = |_: &mut Session| {
            load(200_000, "100", "100000", "set,get,lpush,lpop,sadd,hset,zadd,mset")?;
            load(100_000, "3000", "20000", "set,get")?;
            load(6000, "150000", "300", "set,get")?;
            to(&cli, &["flushall"])?;
            Ok(())
        };
        let mut used = session.work(work, false)?;
        used.rested_bytes = Some(session.rest(scale.rest()));
        session.interrupt()?;
        Ok(used)
    };
    Ok(Box::new(run))
}

/// nginx with a worker: small files, text that it compresses, and answers of a server behind it.
pub(super) fn nginx(scale: Scale) -> Result<Box<Run>, String> {
    let server = first_of(&[PathBuf::from("/usr/sbin/nginx")])?;
    let ab = first_of(&[PathBuf::from("/usr/bin/ab")])?;
    let run = move |malloc: &Malloc, folder: &Path| {
        let port = free_port()?;
        write(&folder.join("small"), &"small ".repeat(700))?;
        write(&folder.join("large"), &text_of(200_000))?;
        let configuration = folder.join("configuration");
        write(&configuration, &nginx_configuration(folder, port))?;
        let mut command = Command::new(&server);
        command.arg("-p").arg(folder).arg("-c").arg(&configuration);
        command.args(["-e", "stderr"]).stdout(Stdio::null()).stdin(Stdio::null());
        let mut session = Session::start(malloc, command, folder)?;
        let load = |requests: usize, path: &str| {
            // ab refuses fewer requests than connections.
            let requests = scale.of(requests).max(16).to_string();
            let mut command = Command::new(&ab);
            command.args(["-q", "-k", "-c", "16", "-n", &requests]);
            command.args(["-H", "Accept-Encoding: gzip"]);
            command.arg(format!("http://127.0.0.1:{port}/{path}"));
            complete(&client(command)?)
        };
        session.wait_until(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        let work = |_: &mut Session| {
            load(120_000, "small")?;
            load(1200, "large")?;
            load(10_000, "behind/large")
        };
        let mut used = session.work(work, false)?;
        used.rested_bytes = Some(session.rest(scale.rest()));
        session.interrupt()?;
        Ok(used)
    };
    Ok(Box::new(run))
}

/// Whether `ab` had an answer to each request.
fn complete(said: &str) -> Result<(), String> {
    let number = |key: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse::<u64>().ok()
    };
    match (number("Failed requests:"), number("Non-2xx responses:")) {
        (Some(0), None | Some(0)) => Ok(()),
        _ => Err(format!("ab: not all requests were served: {}", said.trim().replace('\n', "; "))),
    }
}

/// Text of words that differ, which a compressor has work with.
fn text_of(bytes: usize) -> String {
    let words = (0_u64..).map(|at| format!("{:x} ", at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40));
    let mut text = String::with_capacity(bytes + 8);
    for word in words {
        if text.len() >= bytes {
            break;
        }
        text += &word;
    }
    text
}

fn nginx_configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = kinds.map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).concat();
    format!(
        "{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr;
events {{ worker_connections 128; }}
http {{
    {temporary}
    access_log off;
    default_type text/plain;
    keepalive_requests 1000000;
    gzip_types text/plain;
    server {{
        listen 127.0.0.1:{port};
        root {folder};
        gzip on;
        location /behind/ {{ gzip off; proxy_pass http://unix:{folder}/behind:/; }}
    }}
    server {{ listen unix:{folder}/behind; root {folder}; gzip off; }}
}}
"
    )
}

/// A port that no other program has now.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_counts_if_each_request_was_served() {
        let said = "Complete requests:      200\nFailed requests:        0\nTotal transferred: 9\n";
        assert_eq!(complete(said), Ok(()));
        let refused = format!("{said}Non-2xx responses:      3\n");
        assert!(complete(&refused).is_err_and(|why| why.contains("Non-2xx")));
        assert!(complete(&said.replace("        0", "        7")).is_err());
        assert!(complete("").is_err());
    }

    #[test]
    fn the_text_has_the_length_that_was_asked_for_and_differing_words() {
        let text = text_of(5000);
        assert!((5000..5016).contains(&text.len()));
        let words: std::collections::BTreeSet<&str> = text.split(' ').collect();
        assert!(words.len() > 500);
    }
}
