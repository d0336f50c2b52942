//! The shortest complete backend: blocks are ranges of an unlinked temporary file.
//! It passes the conformance suite that every backend passes, and serves a pool:
//! `cargo run --features conformance --example custom_backend`
#![expect(clippy::expect_used, clippy::print_stdout, reason = "an example that must not fail")]
#![expect(clippy::cast_possible_truncation, reason = "buffers are read whole, into memory")]

use bucketpool::port::{Immediate, Memory, Request};
use bucketpool::{DeviceAllocator, DeviceError, Transfer, Why, conformance};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{collections::BTreeMap, env, fs::File, io, os::unix::fs::FileExt, process, sync::Mutex};

struct FileAllocator {
    file: File,
    end: AtomicU64,
    free: Mutex<BTreeMap<u64, Vec<u64>>>, // the starts of freed ranges, by their length
}

/// A range of the file: its start and length. It is not `Clone`, so it cannot be freed twice.
struct Range(u64, u64);

/// The start of a block in use. It is not `Clone`, so it does not outlive its `Use`.
struct View<'b>(&'b File, u64);

impl FileAllocator {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("bucketpool-{}-{}", process::id(), NEXT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(path)?;
        Ok(Self { file, end: AtomicU64::new(0), free: Mutex::default() })
    }
}

impl DeviceAllocator for FileAllocator {
    type Block = Range;
    type View<'b> = View<'b>;
    type Kind = (); // there is only one kind of file memory
    type Clock = Immediate; // no streams: a write is complete when it returns
    const MEMORY: Memory = Memory { fresh_is_zeroed: false, ..Memory::HOST }; // freed ranges serve again

    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, (): (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, 1)
    }
    fn allocate(&self, request: Request<()>, (): &()) -> Result<Range, DeviceError> {
        if request.bytes > 1 << 40 {
            return Err(DeviceError::new(Why::TooLarge, "a range of a file"));
        }
        let same_length = |free: &mut BTreeMap<u64, Vec<u64>>| free.get_mut(&request.bytes)?.pop();
        let freed = same_length(&mut self.free.lock().expect("no panic under the lock"));
        if let Some(at) = freed {
            return Ok(Range(at, request.bytes));
        }
        let at = self.end.fetch_add(request.bytes, Relaxed);
        let full = |_| DeviceError::new(Why::OutOfMemory, "write");
        self.file.write_all_at(&[0], at + request.bytes - 1).map_err(full)?;
        Ok(Range(at, request.bytes))
    }
    fn free(&self, Range(at, bytes): Range, _: &[()]) -> Result<(), DeviceError> {
        self.free.lock().expect("no panic under the lock").entry(bytes).or_default().push(at);
        Ok(())
    }
    fn view<'b>(&'b self, block: &'b Range, offset: u64, _: u64, (): &()) -> Self::View<'b> {
        View(&self.file, block.0 + offset)
    }
    fn zero(&self, block: &mut Range, bytes: u64, (): &()) -> Result<(), DeviceError> {
        let failed = |_| DeviceError::new(Why::Other, "write");
        self.file.write_all_at(&vec![0; bytes as usize], block.0).map_err(failed)
    }
}

impl Transfer for FileAllocator {
    unsafe fn write(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        (): &(),
    ) -> Result<(), DeviceError> {
        let failed = |_| DeviceError::new(Why::Other, "write");
        to.0.write_all_at(from, to.1 + offset).map_err(failed)
    }

    unsafe fn read(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        to: &mut [u8],
        (): &(),
    ) -> Result<(), DeviceError> {
        let failed = |_| DeviceError::new(Why::Other, "read");
        from.0.read_exact_at(to, from.1 + offset).map_err(failed)
    }
}

fn main() {
    let make = || FileAllocator::new().expect("a folder for temporary files");
    conformance::run(make);
    println!("a file passes the suite");
}
