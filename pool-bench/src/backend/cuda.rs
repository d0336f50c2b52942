//! VRAM of the first GPU, by CUDA.

use super::{Absence, MemoryKind, Peers};
use crate::apart::Process;
use crate::gpu;
use crate::input::BadInput;
use crate::machine::Clock;
use crate::pass::{Pass, Tally};
use crate::place;
use crate::rounds::Row;
use crate::source::{Steps, on_device};
use crate::spec::NamedPolicy;
use crate::trace;
use bucketpool::cuda::CudaAllocator;

/// VRAM.
#[derive(Debug)]
pub(super) struct Cuda;

fn open() -> Result<CudaAllocator, String> {
    CudaAllocator::new(0).map_err(|error| error.to_string())
}

impl MemoryKind for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }
    fn title(&self) -> &'static str {
        super::CUDA
    }
    fn clock(&self) -> Clock {
        Clock::Wall
    }
    fn absence(&self) -> Option<Absence> {
        let cure = "a machine with an NVIDIA GPU and its driver";
        open().err().map(|why| Absence { why, cure })
    }
    fn replay(&self, pass: &Pass<'_>) -> Result<Tally, String> {
        Ok(pass.run(open()?, NamedPolicy::builder))
    }
    fn source(&self, spec: Option<&NamedPolicy>, _keeps: bool) -> Result<Box<dyn Steps>, String> {
        Ok(on_device(open()?, NamedPolicy::builder, spec, true))
    }
    fn peers(&self) -> Peers {
        Peers::WaysAndPrograms
    }
    fn beside_peers(&self, programs: &[String], process: &Process) -> Result<Vec<Row>, BadInput> {
        let files = place::traces(process.smoke)?;
        let traces: Result<Vec<_>, _> = files.iter().map(|file| trace::read(file)).collect();
        gpu::run(programs, traces?, process)
    }
    fn device(&self) -> Option<String> {
        gpu::machine()
    }
}
