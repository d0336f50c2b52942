//! candle on the CPU: it has no hook, so the program's global allocator is a `Tcache`. The same
//! program runs once more with the tcache off.
//!
//! `cargo run --release --manifest-path examples/clients/Cargo.toml --example candle`

use bucketpool::host::Tcache;
use bucketpool_clients::cpu_ns;
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

fn main() -> Result<()> {
    let steps = if std::env::args().any(|word| word == "--smoke") { 2 } else { 200 };
    let (start, mut sum) = (cpu_ns(), 0.0);
    for step in 0..steps {
        sum += attention(300 + step % 7 * 60, 64)?;
    }
    let ms = (cpu_ns() - start) / 1e6;
    if !ALLOCATOR.is_active() {
        println!("own way: {ms:.0} ms, sum {sum}");
        return Ok(());
    }
    println!("tcache:  {ms:.0} ms, sum {sum}");
    println!("{}", ALLOCATOR.stats());
    let program = std::env::current_exe()?;
    let mut again = Command::new(program);
    let again = again.args(std::env::args().skip(1)).env("BUCKETPOOL_HOST", "off").status()?;
    assert!(again.success(), "the program without the tcache: {again}");
    Ok(())
}
