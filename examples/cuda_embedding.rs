//! Embedding batches: vectors of many sizes through seven size classes, under a limit.
//! `cargo run --release --features cuda --example cuda_embedding`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::cuda::{AllocateCudaArray, CudaAllocator, CudaDevice};
use bucketpool::{GIB, preset};
use std::error::Error;

const DIMENSION: usize = 768;

fn main() -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::new(0)?;
    let stream = device.context().new_stream()?;
    let on = device.stream(&stream)?;
    let pool = preset::embedding(CudaAllocator::on(device)).reserved_limit(4 * GIB).build();
    for batch in 0..200_u16 {
        let rows = 1 + usize::from(batch) * 37 % 512;
        let vectors = vec![f32::from(batch); rows * DIMENSION];
        let mut tokens = pool.allocate_array_on::<f32>(&on, &[rows, DIMENSION])?;
        stream.memcpy_htod(&vectors, &mut tokens)?; // cudarc's own call takes the array
        let mut hidden = pool.allocate_array_on::<f32>(&on, &[rows, DIMENSION])?;
        stream.memcpy_dtod(&tokens, &mut hidden)?;
        let shown = stream.clone_dtoh(&hidden)?;
        if shown != vectors {
            return Err(format!("batch {batch} came back wrong").into());
        }
    }
    println!("200 batches, all right\n{}", pool.stats());
    Ok(())
}
