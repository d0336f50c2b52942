//! Our own contenders: a pool of whole blocks, and pools with an arena.

use super::contender::{Allocator, Contenders, Refused};
use super::driver::Gpu;
use bucketpool::cuda::{CudaAllocator, CudaDevice, CudaVmmAllocator, PoolStream, Vram};
use bucketpool::stream::StealPolicy;
use bucketpool::{ArenaConfig, BucketPolicy, BucketPool, PoolBuilder, PooledBuffer};

struct PooledVram<A: Vram> {
    gpu: Gpu,
    streams: Vec<PoolStream>,
    make: Make<A>,
    pool: BucketPool<A>,
}

/// Makes the builder of a pool over a device.
type Make<A> = Box<dyn Fn(CudaDevice) -> Result<PoolBuilder<A>, Refused> + Send + Sync>;

impl<A: Vram> PooledVram<A> {
    fn new(
        make: impl Fn(CudaDevice) -> Result<PoolBuilder<A>, Refused> + Send + Sync + 'static,
    ) -> Result<Self, Refused> {
        let gpu = Gpu::new()?;
        let streams: Result<_, _> = gpu.streams.iter().map(|s| gpu.device.stream(s)).collect();
        let pool = make(gpu.device.clone())?.build();
        Ok(Self { streams: streams?, make: Box::new(make), pool, gpu })
    }
}

impl<A: Vram> Allocator for PooledVram<A> {
    /// The buffer, and its address: what the others' calls return.
    type Block = (PooledBuffer<A>, u64);

    fn take(&self, bytes: u64, stream: usize) -> Result<Self::Block, Refused> {
        let taken = self.pool.allocate_on(&self.streams[stream], bytes);
        let buffer = taken.map_err(|error| Refused(error.to_string()))?;
        let at = buffer.on(&self.streams[stream])?.as_ptr();
        Ok((buffer, at))
    }
    fn give(&self, block: Self::Block, _stream: usize) -> Result<(), Refused> {
        drop(block);
        Ok(())
    }
    fn record(&self, (buffer, _): &Self::Block) -> Result<(), Refused> {
        Ok(buffer.record_stream(&self.streams[1])?)
    }
    /// The use that `take` began has ended, and no event has been recorded since, so the block is
    /// still behind what its stream is given.
    fn write(&self, (_, at): &Self::Block, bytes: u64, stream: usize) -> Result<(), Refused> {
        self.gpu.write(*at, bytes, stream)
    }
    fn wait(&self) -> Result<(), Refused> {
        self.gpu.wait()
    }
    fn device(&self) -> &CudaDevice {
        &self.gpu.device
    }
    fn reserved_peak(&self) -> u64 {
        self.pool.stats().reserved_peak_bytes
    }
    /// An arena keeps its share of the highest peak that it ever had, so this is a new pool.
    fn reset(&mut self) -> Result<(), Refused> {
        self.pool.clear().map_err(|error| Refused(error.to_string()))?;
        self.pool = (self.make)(self.gpu.device.clone())?.build();
        Ok(())
    }
}

/// The first is what the others are compared with.
pub(super) fn contenders(steal_never: bool) -> Result<Contenders, Refused> {
    let steal = if steal_never { StealPolicy::Never } else { StealPolicy::Wait };
    let whole = PooledVram::new(move |device| {
        Ok(BucketPool::builder(CudaAllocator::on(device))
            .policy(BucketPolicy::PowerOfTwo)
            .steal(steal))
    })?;
    let torch = PooledVram::new(move |device| {
        Ok(BucketPool::builder(CudaAllocator::on(device)).arena(ArenaConfig::torch()).steal(steal))
    })?;
    let pages = PooledVram::new(move |device| {
        let memory = CudaVmmAllocator::new(device, &[])?;
        Ok(BucketPool::builder(memory).arena(ArenaConfig::grow()).steal(steal))
    });
    let mut all: Contenders = vec![
        ("bucketpool, pow2".into(), Box::new(whole)),
        ("bucketpool, arena:torch".into(), Box::new(torch)),
    ];
    // A device without virtual memory is a device like any other, without this contender.
    if let Ok(pages) = pages {
        all.push(("bucketpool, arena".into(), Box::new(pages)));
    }
    Ok(all)
}
