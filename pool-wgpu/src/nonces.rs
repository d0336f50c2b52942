//! Numbers by which commands show that they ran.
//!
//! wgpu maps memory after a submission that it refused, too. The memory may then show anything that
//! it had before, even in a new buffer: wgpu counts the writes of a refused submission's earlier
//! command buffers as done, and leaves out the zeroing. So commands that bring something back copy
//! a nonce into the memory, a number that no memory had before: each is used once in this process,
//! for all devices.

use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoder};

/// Numbers in a table.
const IN_TABLE: u64 = 512;

/// A number, and where commands copy it from.
pub(crate) struct Nonce {
    number: u64,
    table: Buffer,
    at: u64,
}

/// The nonces of one purpose. Commands copy them from a table, which is made when it is needed.
#[derive(Default)]
pub(crate) struct Nonces(Mutex<Option<Table>>);

/// A buffer of consecutive numbers.
struct Table {
    buffer: Buffer,
    first: u64,
    used: u64,
}

impl Nonce {
    pub(crate) const BYTES: u64 = 8;

    pub(crate) fn bytes(&self) -> [u8; 8] {
        self.number.to_le_bytes()
    }

    /// Copies the number to `at`, a multiple of 4, by these commands.
    pub(crate) fn copy(&self, commands: &mut CommandEncoder, to: &Buffer, at: u64) {
        commands.copy_buffer_to_buffer(&self.table, self.at, to, at, Self::BYTES);
    }
}

impl Nonces {
    pub(crate) fn next(&self, shared: &Shared) -> Result<Nonce, DeviceError> {
        loop {
            if let Some(nonce) = self.0.lock().as_mut().and_then(Table::next) {
                return Ok(nonce);
            }
            // The lock is not held while a table is made: wgpu may run callbacks then. Numbers of a
            // table that another thread has made meanwhile are left out.
            let table = Table::new(shared)?;
            *self.0.lock() = Some(table);
        }
    }
}

impl Table {
    fn new(shared: &Shared) -> Result<Self, DeviceError> {
        // Where a buffer cannot be mapped for writing, wgpu fills it from memory that it recycles
        // at once: with numbers that are not used yet.
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let buffer = shared.create(&BufferDescriptor {
            label: Some("bucketpool nonces"),
            size: IN_TABLE * Nonce::BYTES,
            usage,
            mapped_at_creation: true,
        })?;
        let first = reserve(IN_TABLE);
        let numbers: Vec<u8> = (first..first + IN_TABLE).flat_map(u64::to_le_bytes).collect();
        let mapped = buffer.get_mapped_range_mut(..);
        let refused = DeviceError::new(Why::Other, "map a table of nonces");
        mapped.map_err(|_| shared.lost_or(refused))?.slice(..).copy_from_slice(&numbers);
        match shared.unmap(&buffer) {
            true => Ok(Self { buffer, first, used: 0 }),
            false => Err(shared.lost_or(refused)),
        }
    }

    fn next(&mut self) -> Option<Nonce> {
        let used = self.used;
        self.used = (used + 1).min(IN_TABLE);
        let (number, at) = (self.first + used, used * Nonce::BYTES);
        (used < IN_TABLE).then(|| Nonce { number, table: self.buffer.clone(), at })
    }
}

/// Reserves numbers, and returns the first. They begin at a random one, so that memory which an
/// earlier process has left has none of them, and are never 0, which zeroed memory shows: 2^63 are
/// left.
fn reserve(count: u64) -> u64 {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let random = RandomState::new().build_hasher().finish();
        AtomicU64::new(random >> 2 | 1 << 62)
    });
    NEXT.fetch_add(count, Relaxed)
}

#[cfg(test)]
mod tests {
    use super::{IN_TABLE, Nonces};
    use crate::shared::Shared;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_all_tables_and_devices_differ() {
        let mut numbers = HashSet::from([0]);
        for _ in 0..3 {
            let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
            let (shared, nonces) = (Shared::new(device, queue), Nonces::default());
            for _ in 0..3 * IN_TABLE {
                let nonce = nonces.next(&shared).unwrap();
                assert!(numbers.insert(nonce.number), "{} twice, or 0", nonce.number);
            }
        }
    }
}
