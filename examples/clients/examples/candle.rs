//! candle on the CPU: it has no hook, so the program's global allocator is a `Tcache`. Processes
//! with the tcache and with the tcache off take turns.
//!
//! `cargo run --release --manifest-path examples/clients/Cargo.toml --example candle`

use bucketpool::host::Tcache;
use bucketpool_clients::{median, process_cpu_ns};
use candle_core::{Device, Result, Tensor};
use std::process::Command;

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

/// Attention over a sequence of this length: four matrices of temporaries.
fn attention(length: usize, width: usize) -> Result<f32> {
    let x = Tensor::arange(0f32, (length * width) as f32, &Device::Cpu)?;
    let x = ((x / (length * width) as f64)? - 0.5)?.reshape((length, width))?;
    let scores = (x.matmul(&x.t()?)? * (width as f64).powf(-0.5))?;
    let weights = (scores.exp()? / 2.0)?;
    let mixed = weights.matmul(&x)?;
    ((mixed + x)? * 0.5)?.sum_all()?.to_scalar()
}

/// Runs the steps, and prints the CPU time of all threads in ms and the sum of the results.
fn work(steps: usize) -> Result<()> {
    let (start, mut sum) = (process_cpu_ns(), 0.0);
    for step in 0..steps {
        sum += attention(300 + step % 7 * 60, 64)?;
    }
    println!("{} {sum}", (process_cpu_ns() - start) / 1e6);
    Ok(())
}

/// Runs this program once more with words of `BUCKETPOOL_HOST`; returns what `work` printed.
fn run(steps: usize, settings: &str) -> Result<(f64, String)> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["work", &steps.to_string()]).env("BUCKETPOOL_HOST", settings);
    let output = program.output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let (time, sum) = text.split_once(' ').expect("a time and a sum");
    Ok((time.parse().expect("a number"), sum.to_owned()))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [task, steps] = words.as_slice()
        && task == "work"
    {
        return work(steps.parse().expect("a number of steps"));
    }
    let (rounds, steps) = if words == ["--smoke"] { (1, 2) } else { (15, 100) };
    let (mut own, mut tcache, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        // In turns, each first in every second round.
        let order = if round % 2 == 0 { ["off", ""] } else { ["", "off"] };
        let [first, second] = [run(steps, order[0])?, run(steps, order[1])?];
        assert_eq!(first.1, second.1, "both ways give the same sum");
        let [off, on] = if round % 2 == 0 { [first.0, second.0] } else { [second.0, first.0] };
        own.push(off);
        tcache.push(on);
        ratios.push(on / off);
    }
    let [own, tcache, ratio] = [own, tcache, ratios].map(median);
    println!("attention: own way {own:.0} ms, tcache {tcache:.0} ms, {ratio:.2} times as long");
    Ok(())
}
