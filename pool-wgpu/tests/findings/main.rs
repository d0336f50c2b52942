//! What programs that know wgpu do, and what they must not see.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod apart;
mod callbacks;
mod destroyed;
mod filled;
mod groups;
mod growing;
mod handles;
mod kept;
mod loss;
mod lost;
mod passes;
#[path = "../present/mod.rs"]
mod present;
mod random;
mod tables;
mod targets;
mod textures;
mod told;
mod uploads;
mod waits;

use pool_core::{KIB, PooledBuffer};
use pool_wgpu::{Unpooled, WgpuAllocator};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder};

type Pooled = PooledBuffer<WgpuAllocator>;

/// A buffer that no pool has.
fn own(device: &WgpuAllocator, bytes: u64) -> Buffer {
    device.device().create_buffer(&BufferDescriptor {
        label: None,
        size: bytes,
        usage: BufferUsages::COPY_SRC | BufferUsages::COPY_DST | BufferUsages::STORAGE,
        mapped_at_creation: false,
    })
}

/// One of 1 KiB that shows a byte.
fn filled(device: &WgpuAllocator, byte: u8) -> Buffer {
    let buffer = own(device, KIB);
    device.queue().write_buffer(&buffer, 0, &[byte; 1024]);
    buffer
}

/// An encoder of the program's own.
fn encoder(device: &WgpuAllocator) -> CommandEncoder {
    device.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// What a buffer of 1 KiB shows: the byte that it is full of; `None` for several.
fn shown(device: &WgpuAllocator, buffer: &Buffer) -> Option<u8> {
    let backs = device.read_backs(KIB);
    let mut scope = device.scope();
    let back = scope.read_back(&backs, &Unpooled(buffer), 0, KIB).unwrap();
    scope.submit().unwrap();
    let one = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0]);
    back.wait(one).unwrap()
}
