//! Physical pieces of memory, and the addresses that they are mapped at.
//!
//! A piece is what one mapping needs, with one handle: the driver's calls cost time by their number
//! and hardly by their size (docs/gpu.md, question 2). Setting access and unmapping may wait for the
//! device. An open pool sets access in a miss and unmaps in a trim, where a wait is acceptable, and
//! does neither in a drop. No lock is held during a driver call.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::abi::{Access, Properties};
use cudarc::driver::{DriverError, sys};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The pieces of one allocator.
#[derive(Debug)]
pub(super) struct Pieces {
    properties: Properties,
    /// The devices that may use the memory: its own first, then the peers.
    access: Vec<Access>,
    watchers: Watchers,
    state: Mutex<State>,
}

/// A function that is called before addresses lose their memory.
pub(super) type Watcher = Arc<dyn Fn(Range<u64>) + Send + Sync>;

/// The watchers of one allocator.
#[derive(Default)]
struct Watchers(Mutex<Vec<Watcher>>);

#[derive(Debug, Default)]
struct State {
    /// Mapped pieces, by address. The thread that unmaps a range has its pieces meanwhile.
    mapped: BTreeMap<u64, Piece>,
    /// Memory and addresses that the driver refused to take back. The next call offers them again.
    refused: Vec<Refused>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    handle: u64,
}

/// Memory or addresses that the driver refused to take back.
#[derive(Clone, Debug)]
enum Refused {
    /// The handle of an unmapped piece, and its bytes.
    Handle(u64, u64),
    /// A range at which pieces are mapped.
    Mapped(Range<u64>),
    /// Reserved addresses: where, and how many bytes.
    Addresses(u64, usize),
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watchers").field(&self.0.lock().len()).finish()
    }
}

impl State {
    fn mapped_bytes(&self, range: Range<u64>) -> u64 {
        self.mapped.range(range).map(|(_, piece)| piece.bytes).sum()
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Pieces {
    pub(super) fn new(properties: Properties, access: Vec<Access>) -> Self {
        Self { properties, access, watchers: Watchers::default(), state: Mutex::default() }
    }

    /// Adds a watcher.
    pub(super) fn watch(&self, watcher: Watcher) {
        self.watchers.0.lock().push(watcher);
    }

    /// Maps one piece of memory at a range.
    pub(super) fn map(&self, at: u64, bytes: u64) -> Result<(), DriverError> {
        // A refusal stays for the next call.
        let _ = self.offer_again();
        self.map_piece(at, bytes)?;
        // SAFETY: all of the range is mapped by now; the descriptions have the driver's layout
        // (abi.rs) and live through the call.
        let access = unsafe {
            sys::cuMemSetAccess(at, size(bytes), Access::first(&self.access), self.access.len())
        };
        let done = access.result();
        // The memory goes back to the device, which another program may need.
        if done.is_err() && self.unmap_stretch(at..at + bytes).is_err() {
            self.state.lock().refused.push(Refused::Mapped(at..at + bytes));
        }
        done
    }

    fn map_piece(&self, at: u64, bytes: u64) -> Result<(), DriverError> {
        let handle = self.create(bytes)?;
        // SAFETY: the addresses are reserved and nothing is mapped there, as the callers guarantee;
        // the handle is of a piece of this size, which was just made.
        let mapped = unsafe { sys::cuMemMap(at, size(bytes), 0, handle, 0) }.result();
        match mapped {
            Ok(()) => {
                self.state.lock().mapped.insert(at, Piece { bytes, handle });
            }
            // What the driver refuses is offered again.
            Err(_) => drop(self.release(handle, bytes)),
        }
        mapped
    }

    fn create(&self, bytes: u64) -> Result<u64, DriverError> {
        let (mut handle, properties) = (0, self.properties.as_ptr());
        // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
        unsafe { sys::cuMemCreate(&raw mut handle, size(bytes), properties, 0) }.result()?;
        Ok(handle)
    }

    /// Unmaps all of a range, which is mapped, in one call. Its pieces go back to the device.
    pub(super) fn unmap(&self, range: Range<u64>) -> Result<(), DriverError> {
        let _ = self.offer_again();
        self.unmap_stretch(range)
    }

    fn unmap_stretch(&self, range: Range<u64>) -> Result<(), DriverError> {
        // A watcher may call the allocator, so no lock is held.
        let watchers = self.watchers.0.lock().clone();
        for watcher in watchers {
            watcher(range.clone());
        }
        // The pieces leave the table first: another thread may map the range as soon as it is
        // unmapped, and two threads may unmap it at once.
        let stretch = self.take_out(&range);
        if stretch.is_empty() {
            return Ok(());
        }
        // SAFETY: all of the range is mapped in whole pieces, as the callers guarantee, and no work
        // uses it: they have waited for its marks. No other thread unmaps the pieces: this one took
        // them out of the table.
        let unmap = unsafe { sys::cuMemUnmap(range.start, size(range.end - range.start)) };
        if let Err(refused) = unmap.result() {
            self.state.lock().mapped.extend(stretch);
            return Err(refused);
        }
        for Piece { bytes, handle } in stretch.into_values() {
            // What the driver refuses is offered again.
            let _ = self.release(handle, bytes);
        }
        Ok(())
    }

    /// Takes the pieces of a range out of the table.
    fn take_out(&self, range: &Range<u64>) -> BTreeMap<u64, Piece> {
        let state = &mut *self.state.lock();
        state.refused.retain(|refused| match refused {
            Refused::Mapped(mapped) => !range.contains(&mapped.start),
            Refused::Handle(..) | Refused::Addresses(..) => true,
        });
        let inside: Vec<u64> = state.mapped.range(range.clone()).map(|(at, _)| *at).collect();
        inside.into_iter().filter_map(|at| state.mapped.remove_entry(&at)).collect()
    }

    /// Unmaps whatever is mapped in a range, in one call for each stretch.
    pub(super) fn unmap_any(&self, range: Range<u64>) -> Result<(), DriverError> {
        let _ = self.offer_again();
        self.unmap_stretches(range)
    }

    fn unmap_stretches(&self, range: Range<u64>) -> Result<(), DriverError> {
        let mut stretches: Vec<Range<u64>> = Vec::new();
        for (at, piece) in self.state.lock().mapped.range(range) {
            match stretches.last_mut() {
                Some(last) if last.end == *at => last.end += piece.bytes,
                _ => stretches.push(*at..at + piece.bytes),
            }
        }
        let mut all = stretches.into_iter();
        all.try_for_each(|stretch| self.unmap_stretch(stretch))
    }

    /// Returns the bytes of the pieces that the driver refused to take back.
    pub(super) fn refused_bytes(&self) -> u64 {
        let state = self.state.lock();
        let refused = state.refused.iter().map(|refused| match refused {
            Refused::Handle(_, bytes) => *bytes,
            Refused::Mapped(range) => state.mapped_bytes(range.clone()),
            Refused::Addresses(..) => 0,
        });
        refused.sum()
    }

    /// Returns the bytes of the pieces that are mapped in a range.
    pub(super) fn mapped_bytes(&self, range: Range<u64>) -> u64 {
        self.state.lock().mapped_bytes(range)
    }

    /// Notes addresses that the driver refused to take back.
    pub(super) fn refused_addresses(&self, at: u64, bytes: usize) {
        self.state.lock().refused.push(Refused::Addresses(at, bytes));
    }

    /// Notes a whole reservation at which the driver refused to unmap something.
    pub(super) fn refused_mapping(&self, range: Range<u64>, bytes: usize) {
        let at = range.start;
        let refused = [Refused::Mapped(range), Refused::Addresses(at, bytes)];
        self.state.lock().refused.extend(refused);
    }

    /// Returns whether [`Pieces::offer_again`] has nothing to do.
    pub(super) fn refused_nothing(&mut self) -> bool {
        self.state.get_mut().refused.is_empty()
    }

    /// Offers the driver once more what it refused to take back. Returns its first refusal.
    pub(super) fn offer_again(&self) -> Result<(), DriverError> {
        let refused = std::mem::take(&mut self.state.lock().refused);
        let mut done = Ok(());
        for refused in refused {
            let taken = match refused.clone() {
                // SAFETY: as in `release`: the driver refused it, so it was not given back.
                Refused::Handle(handle, _) => unsafe { sys::cuMemRelease(handle) }.result(),
                Refused::Mapped(range) => self.unmap_stretches(range),
                // SAFETY: reserved with this length and nothing is mapped there; the driver refuses
                // while something is.
                Refused::Addresses(at, n) => unsafe { sys::cuMemAddressFree(at, n) }.result(),
            };
            if taken.is_err() {
                self.state.lock().refused.push(refused);
            }
            done = done.and(taken);
        }
        done
    }

    /// Gives the handle of an unmapped piece back, or notes it for the next call.
    fn release(&self, handle: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the handle came from `create`, is given back once, and its piece is mapped
        // nowhere.
        let released = unsafe { sys::cuMemRelease(handle) }.result();
        if released.is_err() {
            self.state.lock().refused.push(Refused::Handle(handle, bytes));
        }
        released
    }
}
