//! The binary that `cargo xtask bench` and `cargo xtask replay` run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use clap::Parser;
use clap::error::ErrorKind;
use pool_bench::command::{self, Cli};
use std::process::ExitCode;

/// Bad input, as for most Unix tools.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            print!("{error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            // The first paragraph says what is wrong; the rest is usage.
            let paragraph = text.split("\n\n").next().unwrap_or_default();
            let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("{line}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let typed: Vec<String> = std::env::args().skip(1).collect();
    match command::run(cli, &format!("cargo xtask {}", typed.join(" "))) {
        Ok(text) => {
            if !text.is_empty() {
                println!("{text}");
            }
            ExitCode::SUCCESS
        }
        Err(bad) => {
            eprintln!("error: {bad}");
            ExitCode::from(BAD_INPUT)
        }
    }
}
