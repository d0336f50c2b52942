//! wgpu buffers on the default adapter, beside fresh buffers by wgpu's own calls alone.

use super::{Absence, MemoryKind, Peers};
use crate::apart::Process;
use crate::counted::Asked;
use crate::input::BadInput;
use crate::machine::Clock;
use crate::pass::{Pass, Tally};
use crate::rounds::Row;
use crate::source::{Steps, on_device};
use crate::spec::NamedPolicy;
use crate::workload::Source;
use bucketpool::wgpu::wgpu::{
    Buffer, BufferDescriptor, COPY_BUFFER_ALIGNMENT, CommandEncoderDescriptor, PollType,
};
use bucketpool::wgpu::{Usage, WgpuAllocator};
use std::cell::Cell;
use std::fmt;

/// wgpu buffers.
#[derive(Debug)]
pub(super) struct Wgpu;

fn open() -> Result<WgpuAllocator, String> {
    WgpuAllocator::on_default_adapter().map_err(|error| error.to_string())
}

impl MemoryKind for Wgpu {
    fn name(&self) -> &'static str {
        "wgpu"
    }
    fn title(&self) -> &'static str {
        super::WGPU
    }
    fn clock(&self) -> Clock {
        Clock::Wall
    }
    fn unsplit(&self) -> Option<&'static str> {
        Some("a wgpu buffer cannot be split into others")
    }
    fn absence(&self) -> Option<Absence> {
        let cure = "a Vulkan driver, such as Debian's mesa-vulkan-drivers";
        open().err().map(|why| Absence { why, cure })
    }
    fn replay(&self, pass: &Pass<'_>) -> Result<Tally, String> {
        Ok(pass.run(open()?, NamedPolicy::without_arena))
    }
    fn source(&self, spec: Option<&NamedPolicy>, _keeps: bool) -> Result<Box<dyn Steps>, String> {
        let device = open()?;
        Ok(match spec {
            None => Box::new(WgpuDirect::new(device)),
            spec => on_device(device, NamedPolicy::without_arena, spec, true),
        })
    }
    fn peers(&self) -> Peers {
        Peers::Ways
    }
    fn beside_peers(&self, _programs: &[String], process: &Process) -> Result<Vec<Row>, BadInput> {
        let failed =
            |why| BadInput::new(format!("backend `wgpu`: {why}"), "a run without failures");
        crate::frames::run(process).map_err(failed)
    }
    fn device(&self) -> Option<String> {
        let info = open().ok()?.device().adapter_info();
        Some(format!("{}, {} {}", info.name, info.driver, info.driver_info))
    }
}

/// Direct allocation on a wgpu device. Each buffer is zeroed by a submission, which writes all of
/// it, as it is for a pool.
struct WgpuDirect {
    device: WgpuAllocator,
    asked: Cell<Asked>,
    held: Cell<u64>,
}

impl WgpuDirect {
    /// On this device; the pool's own calls are not used.
    fn new(device: WgpuAllocator) -> Self {
        Self { device, asked: Cell::default(), held: Cell::new(0) }
    }
}

impl Source for WgpuDirect {
    type Buffer = Buffer;

    fn filled(&self, bytes: usize, _byte: u8) -> Option<Buffer> {
        let size = (bytes as u64).next_multiple_of(COPY_BUFFER_ALIGNMENT);
        let (label, usage) = (None, Usage::default().flags());
        let descriptor = BufferDescriptor { label, size, usage, mapped_at_creation: false };
        let buffer = self.device.device().create_buffer(&descriptor);
        let descriptor = CommandEncoderDescriptor::default();
        let mut encoder = self.device.device().create_command_encoder(&descriptor);
        encoder.clear_buffer(&buffer, 0, None);
        self.device.queue().submit([encoder.finish()]);
        let (mut asked, held) = (self.asked.get(), self.held.get() + size);
        asked.allocations += 1;
        asked.peak_bytes = asked.peak_bytes.max(held);
        self.held.set(held);
        self.asked.set(asked);
        Some(buffer)
    }

    fn give_back(&self, buffer: Buffer) -> u64 {
        let mut asked = self.asked.get();
        asked.frees += 1;
        self.asked.set(asked);
        self.held.set(self.held.get() - buffer.size());
        1
    }

    fn finish(&self) {
        // A lost device is told by the next call.
        let _ = self.device.device().poll(PollType::wait_indefinitely());
    }

    fn asked(&self) -> Asked {
        self.asked.get()
    }
}

impl fmt::Debug for WgpuDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuDirect").field("asked", &self.asked).finish_non_exhaustive()
    }
}
