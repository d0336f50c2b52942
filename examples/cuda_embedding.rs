//! Embedding batches: vectors of many sizes through seven size classes, under a limit.
//! `cargo run --release --features cuda --example cuda_embedding`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::GIB;
use bucketpool::array::PooledArray;
use bucketpool::config::preset;
use bucketpool::cuda::{CudaAllocator, CudaDevice};
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
        let mut tokens = PooledArray::<f32, _>::new_on(&pool, &on, [rows, DIMENSION])?;
        tokens.write_on(&on, &vectors)?;
        let hidden = PooledArray::<f32, _>::new_on(&pool, &on, [rows, DIMENSION])?;
        // cudarc's own calls take the memory in use on their stream.
        let (from, to) = (tokens.read_on(&on)?, hidden.on(&on)?);
        stream.memcpy_dtod(&from.typed::<f32>(), &mut to.typed())?;
        drop((from, to));
        if hidden.to_vec()? != vectors {
            return Err(format!("batch {batch} came back wrong").into());
        }
    }
    println!("200 batches, all right\n{}", pool.stats());
    Ok(())
}
