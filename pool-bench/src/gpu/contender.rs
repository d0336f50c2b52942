//! Who is asked: the questions, and the driver's own calls as the first to answer them.
#![expect(unsafe_code, reason = "the driver is called through C")]

use bucketpool::cuda::CudaDevice;
use bucketpool::cuda::cudarc::driver::{CudaStream, DriverError, result, sys};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What every contender is asked; the words of `peers/gpu/peer.hpp`.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Pair { bytes: u64, threads: usize, pairs: u64 },
    Many { count: u64, bytes: u64, rounds: u64 },
    Record { bytes: u64, pairs: u64 },
    Trace { file: PathBuf },
    Reset,
}

impl Question {
    /// Bytes of a block; 0 where there is no one size.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Pair { bytes, .. } | Self::Many { bytes, .. } | Self::Record { bytes, .. } => {
                *bytes
            }
            Self::Trace { .. } | Self::Reset => 0,
        }
    }

    /// The same so often that the answer takes about so many nanoseconds, given what one took.
    pub(super) fn lasting(&self, one: f64, wanted: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let times = |one: f64| (wanted / one.max(1.0)).clamp(1.0, 1e6) as u64;
        match self.clone() {
            Self::Pair { bytes, threads, .. } => Self::Pair { bytes, threads, pairs: times(one) },
            Self::Many { count, bytes, .. } => {
                Self::Many { count, bytes, rounds: times(one * 2.0 * count as f64) }
            }
            Self::Record { bytes, .. } => Self::Record { bytes, pairs: times(one) },
            other => other,
        }
    }

    /// The line that a process of its own reads.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Pair { bytes, threads, pairs } => format!("pair {bytes} {threads} {pairs}"),
            Self::Many { count, bytes, rounds } => format!("many {count} {bytes} {rounds}"),
            Self::Record { bytes, pairs } => format!("record {bytes} {pairs}"),
            Self::Trace { file } => format!("trace {}", file.display()),
            Self::Reset => "reset".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) ns: f64,
    pub(super) reserved_peak_bytes: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) struct Refused(pub(super) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DriverError> for Refused {
    fn from(error: DriverError) -> Self {
        Self(format!("{:?}", error.0))
    }
}

impl From<bucketpool::DeviceError> for Refused {
    fn from(error: bucketpool::DeviceError) -> Self {
        Self(error.to_string())
    }
}

pub(super) trait Contender {
    fn ask(&mut self, question: &Question) -> Result<Answer, Refused>;
}

/// Contenders and their names.
pub(super) type Contenders = Vec<(String, Box<dyn Contender>)>;

/// What an allocator in this process must offer.
pub(super) trait Allocator: Sync {
    type Block: Send;
    /// Called before each question.
    fn begin(&self) -> Result<(), Refused> {
        Ok(())
    }
    /// A block for work on the stream of this number.
    fn take(&self, bytes: u64, stream: usize) -> Result<Self::Block, Refused>;
    fn give(&self, block: Self::Block, stream: usize) -> Result<(), Refused>;
    /// Notes that the second stream uses it until it is given back.
    fn record(&self, block: &Self::Block) -> Result<(), Refused>;
    /// Writes all of it, on the first stream.
    fn write(&self, block: &Self::Block, bytes: u64) -> Result<(), Refused>;
    fn device(&self) -> &CudaDevice;
    fn reserved_peak(&self) -> u64;
    /// Everything idle goes back, and the peak starts again.
    fn reset(&self) -> Result<(), Refused>;
}

impl<A: Allocator> Contender for A {
    fn ask(&mut self, question: &Question) -> Result<Answer, Refused> {
        self.device().context().bind_to_thread()?;
        self.begin()?;
        let ns = match question {
            Question::Pair { bytes, threads: 1, pairs } => run_pairs(self, *bytes, 0, *pairs)?,
            Question::Pair { bytes, threads, pairs } => on_threads(self, *bytes, *threads, *pairs)?,
            Question::Many { count, bytes, rounds } => many(self, *count, *bytes, *rounds)?,
            Question::Record { bytes, pairs } => record(self, *bytes, *pairs)?,
            Question::Trace { file } => trace(self, file)?,
            Question::Reset => {
                self.device().context().synchronize()?;
                self.reset()?;
                0.0
            }
        };
        Ok(Answer { ns, reserved_peak_bytes: self.reserved_peak() })
    }
}

fn run_pairs(
    allocator: &impl Allocator,
    bytes: u64,
    stream: usize,
    pairs: u64,
) -> Result<f64, Refused> {
    allocator.give(allocator.take(bytes, stream)?, stream)?;
    let start = Instant::now();
    for _ in 0..pairs {
        allocator.give(std::hint::black_box(allocator.take(bytes, stream)?), stream)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / pairs as f64)
}

fn on_threads(
    allocator: &impl Allocator,
    bytes: u64,
    threads: usize,
    pairs: u64,
) -> Result<f64, Refused> {
    let each: Vec<Result<f64, Refused>> = std::thread::scope(|scope| {
        let work = |stream| {
            scope.spawn(move || {
                allocator.device().context().bind_to_thread()?;
                run_pairs(allocator, bytes, stream, pairs)
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        let gone = |_| Err(Refused("a thread that panicked".into()));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(gone)).collect()
    });
    let each: Vec<f64> = each.into_iter().collect::<Result<_, _>>()?;
    Ok(each.iter().sum::<f64>() / threads as f64)
}

fn many(allocator: &impl Allocator, count: u64, bytes: u64, rounds: u64) -> Result<f64, Refused> {
    let start = Instant::now();
    for _ in 0..rounds {
        let blocks: Result<Vec<_>, _> = (0..count).map(|_| allocator.take(bytes, 0)).collect();
        blocks?.into_iter().try_for_each(|block| allocator.give(block, 0))?;
    }
    Ok(start.elapsed().as_nanos() as f64 / (2 * count * rounds) as f64)
}

fn record(allocator: &impl Allocator, bytes: u64, pairs: u64) -> Result<f64, Refused> {
    let start = Instant::now();
    for _ in 0..pairs {
        let block = allocator.take(bytes, 0)?;
        allocator.record(&block)?;
        allocator.give(block, 0)?;
    }
    let ns = start.elapsed().as_nanos() as f64 / pairs as f64;
    allocator.device().context().synchronize()?;
    Ok(ns)
}

fn trace(allocator: &impl Allocator, file: &PathBuf) -> Result<f64, Refused> {
    let text = std::fs::read_to_string(file).map_err(|error| Refused(error.to_string()))?;
    allocator.reset()?;
    let (mut live, mut took, mut steps) = (HashMap::new(), 0, 0_u64);
    for line in text.lines() {
        let mut words = line.split(' ').skip(1).map(str::parse::<u64>);
        let (Some(Ok(id)), bytes) = (words.next(), words.next()) else { continue };
        steps += 1;
        let start = Instant::now();
        if let Some(Ok(bytes)) = bytes {
            let block = allocator.take(bytes, 0)?;
            took += start.elapsed().as_nanos();
            allocator.write(&block, bytes)?;
            live.insert(id, block);
        } else if let Some(block) = live.remove(&id) {
            allocator.give(block, 0)?;
            took += start.elapsed().as_nanos();
        }
    }
    live.into_values().try_for_each(|block| allocator.give(block, 0))?;
    allocator.device().context().synchronize()?;
    Ok(took as f64 / steps.max(1) as f64)
}

/// As the driver says: 12080 for 12.8.
pub(super) fn driver_version() -> Option<i32> {
    let mut version = 0;
    // SAFETY: writes a number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    Some(version)
}

/// A device with streams, and its writes.
pub(super) struct Gpu {
    pub(super) device: CudaDevice,
    pub(super) streams: Vec<Arc<CudaStream>>,
}

impl Gpu {
    pub(super) fn new() -> Result<Self, Refused> {
        let device = CudaDevice::new(0)?;
        let streams: Result<_, _> = (0..17).map(|_| device.context().new_stream()).collect();
        Ok(Self { streams: streams?, device })
    }

    pub(super) fn write(&self, at: u64, bytes: u64) -> Result<(), Refused> {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // SAFETY: the callers own a block of so many bytes there, for work on the first stream.
        unsafe { result::memset_d8_async(at, 1, bytes, self.streams[0].cu_stream()) }?;
        Ok(())
    }
}

/// `cuMemAlloc` and `cuMemFree` for each block.
pub(super) struct Direct(Gpu);

impl Direct {
    pub(super) fn new() -> Result<Self, Refused> {
        Gpu::new().map(Self)
    }
}

impl Allocator for Direct {
    type Block = u64;

    fn take(&self, bytes: u64, _stream: usize) -> Result<u64, Refused> {
        // SAFETY: asks the driver for memory.
        Ok(unsafe { result::malloc_sync(usize::try_from(bytes).unwrap_or(usize::MAX)) }?)
    }
    fn give(&self, block: u64, _stream: usize) -> Result<(), Refused> {
        // SAFETY: taken above, and given back once; the driver waits for the device.
        Ok(unsafe { result::free_sync(block) }?)
    }
    fn record(&self, _: &u64) -> Result<(), Refused> {
        Ok(()) // the driver waits for all streams
    }
    fn write(&self, block: &u64, bytes: u64) -> Result<(), Refused> {
        self.0.write(*block, bytes)
    }
    fn device(&self) -> &CudaDevice {
        &self.0.device
    }
    fn reserved_peak(&self) -> u64 {
        0 // it says nothing of it
    }
    fn reset(&self) -> Result<(), Refused> {
        Ok(())
    }
}

/// `cuMemAllocAsync` and `cuMemFreeAsync` on the stream that uses the block, from the device's own
/// pool, which keeps so many bytes: 0 as it comes, all of it for a program that sets one line.
pub(super) struct Ordered {
    gpu: Gpu,
    threshold: u64,
    pool: sys::CUmemoryPool,
    event: sys::CUevent,
}

// SAFETY: the driver lets any thread use a pool, and an event.
unsafe impl Sync for Ordered {}

impl Ordered {
    pub(super) fn new(threshold: u64) -> Result<Self, Refused> {
        let gpu = Gpu::new()?;
        let mut pool = std::ptr::null_mut();
        let device = gpu.device.context().cu_device();
        // SAFETY: asks for the pool of a device that is there.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) }.result()?;
        gpu.device.context().bind_to_thread()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { gpu, threshold, pool, event })
    }

    fn set(&self, which: sys::CUmemPool_attribute, mut value: u64) -> Result<(), Refused> {
        // SAFETY: the attributes set here are 64-bit numbers, which the driver reads.
        unsafe { sys::cuMemPoolSetAttribute(self.pool, which, (&raw mut value).cast()) }
            .result()?;
        Ok(())
    }
}

impl Allocator for Ordered {
    type Block = u64;

    /// The pool is shared with the other contender of this sort.
    fn begin(&self) -> Result<(), Refused> {
        self.set(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, self.threshold)
    }
    fn take(&self, bytes: u64, stream: usize) -> Result<u64, Refused> {
        let (stream, bytes) = (self.gpu.streams[stream].cu_stream(), usize::try_from(bytes));
        // SAFETY: asks the driver for memory; the stream is kept alive here.
        Ok(unsafe { result::malloc_async(stream, bytes.unwrap_or(usize::MAX)) }?)
    }
    fn give(&self, block: u64, stream: usize) -> Result<(), Refused> {
        // SAFETY: taken above, and given back once, in the order of the stream that used it.
        Ok(unsafe { result::free_async(block, self.gpu.streams[stream].cu_stream()) }?)
    }
    /// What a program does that knows nothing better: the free waits for the other stream.
    fn record(&self, _: &u64) -> Result<(), Refused> {
        let (home, other) = (self.gpu.streams[0].cu_stream(), self.gpu.streams[1].cu_stream());
        // SAFETY: the event and the streams are kept alive here.
        unsafe { result::event::record(self.event, other) }?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        Ok(unsafe { result::stream::wait_event(home, self.event, flags) }?)
    }
    fn write(&self, block: &u64, bytes: u64) -> Result<(), Refused> {
        self.gpu.write(*block, bytes)
    }
    fn device(&self) -> &CudaDevice {
        &self.gpu.device
    }
    fn reserved_peak(&self) -> u64 {
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        let mut value = 0_u64;
        // SAFETY: the attribute is a 64-bit number, which the driver writes.
        let read = unsafe { sys::cuMemPoolGetAttribute(self.pool, which, (&raw mut value).cast()) };
        read.result().map_or(0, |()| value)
    }
    fn reset(&self) -> Result<(), Refused> {
        self.gpu.device.context().synchronize()?;
        // SAFETY: the device's own pool.
        unsafe { sys::cuMemPoolTrimTo(self.pool, 0) }.result()?;
        self.set(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and nobody else has it.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
