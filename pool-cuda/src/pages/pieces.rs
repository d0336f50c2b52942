//! Physical pieces of memory, and the addresses that they are mapped at.
//!
//! Each piece has a handle, and each driver call costs time for each handle that it touches, so
//! pieces are large, and a few that are unmapped stay for the next mapping. Setting access and
//! unmapping may wait for the device. An open pool makes both calls in a miss and in a trim, where
//! a wait is acceptable, and in no drop. No lock is held during a driver call.
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
    /// Bytes of a piece that can be kept.
    piece: u64,
    /// Number of pieces that are kept.
    most_kept: usize,
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
    /// Unmapped pieces, for the next mapping.
    kept: Vec<u64>,
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

/// Where pieces go that are unmapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unmapped {
    Kept,
    Released,
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
    pub(super) fn new(
        properties: Properties,
        access: Vec<Access>,
        piece: u64,
        most_kept: usize,
    ) -> Self {
        let (watchers, state) = (Watchers::default(), Mutex::default());
        Self { properties, access, piece, most_kept, watchers, state }
    }

    /// Adds a watcher.
    pub(super) fn watch(&self, watcher: Watcher) {
        self.watchers.0.lock().push(watcher);
    }

    /// Maps memory at all of a range, in pieces of `piece` bytes, or at none of it.
    pub(super) fn map(&self, at: u64, bytes: u64, piece: u64) -> Result<(), DriverError> {
        // A refusal stays for the next call.
        let _ = self.offer_again();
        let mut end = at;
        let mut all = || {
            while end < at + bytes {
                self.map_piece(end, piece)?;
                end += piece;
            }
            // SAFETY: all of the range is mapped by now; the descriptions have the driver's layout
            // (abi.rs) and live through the call.
            let access = unsafe {
                sys::cuMemSetAccess(at, size(bytes), Access::first(&self.access), self.access.len())
            };
            access.result()
        };
        let done = all();
        // The memory goes back to the device, which another program may need.
        if done.is_err() && end > at && self.unmap_stretch(at..end, Unmapped::Released).is_err() {
            self.state.lock().refused.push(Refused::Mapped(at..end));
        }
        done
    }

    fn map_piece(&self, at: u64, bytes: u64) -> Result<(), DriverError> {
        let kept = if bytes == self.piece { self.state.lock().kept.pop() } else { None };
        let handle = kept.map_or_else(|| self.create(bytes), Ok)?;
        // SAFETY: the addresses are reserved and nothing is mapped there, as the callers guarantee;
        // the handle is of a piece of this size, which is mapped nowhere.
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

    /// Makes a piece. Kept pieces go back if the device has no memory left.
    fn create(&self, bytes: u64) -> Result<u64, DriverError> {
        let mut handle = 0;
        let mut create = || {
            let properties = self.properties.as_ptr();
            // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
            unsafe { sys::cuMemCreate(&raw mut handle, size(bytes), properties, 0) }.result()
        };
        let created = create();
        let is_full = created.is_err_and(|e| e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        if is_full && self.give_kept_back() != Ok(0) {
            create()?;
        } else {
            created?;
        }
        Ok(handle)
    }

    /// Unmaps all of a range, which is mapped, in one call. Its pieces are kept or go back.
    pub(super) fn unmap(&self, range: Range<u64>) -> Result<(), DriverError> {
        let _ = self.offer_again();
        self.unmap_stretch(range, Unmapped::Kept)
    }

    fn unmap_stretch(&self, range: Range<u64>, pieces: Unmapped) -> Result<(), DriverError> {
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
        let given_up = self.keep_some(stretch, pieces);
        for Piece { bytes, handle } in given_up {
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
        let mut taken = state.mapped.split_off(&range.start);
        let mut above = taken.split_off(&range.end);
        state.mapped.append(&mut above);
        taken
    }

    /// Keeps as many of the unmapped pieces as it may, and returns the others.
    fn keep_some(&self, unmapped: BTreeMap<u64, Piece>, pieces: Unmapped) -> Vec<Piece> {
        let state = &mut *self.state.lock();
        let mut released = Vec::new();
        for piece in unmapped.into_values() {
            let room = state.kept.len() < self.most_kept;
            if pieces == Unmapped::Kept && room && piece.bytes == self.piece {
                state.kept.push(piece.handle);
            } else {
                released.push(piece);
            }
        }
        released
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
        all.try_for_each(|stretch| self.unmap_stretch(stretch, Unmapped::Kept))
    }

    /// Gives the kept pieces back to the device, and what it refused before.
    pub(super) fn release_kept(&self) -> Result<(), DriverError> {
        let released = self.give_kept_back();
        released.and(self.offer_again())
    }

    /// Gives the kept pieces back. Returns how many there were, or the first refusal.
    fn give_kept_back(&self) -> Result<usize, DriverError> {
        let kept = std::mem::take(&mut self.state.lock().kept);
        let count = kept.len();
        let mut done = Ok(count);
        for handle in kept {
            let released = self.release(handle, self.piece);
            done = done.and(released.map(|()| count));
        }
        done
    }

    /// Returns the bytes of the kept pieces, and of those that the driver refused to take back.
    pub(super) fn kept_bytes(&self) -> u64 {
        let state = self.state.lock();
        let refused = state.refused.iter().map(|refused| match refused {
            Refused::Handle(_, bytes) => *bytes,
            Refused::Mapped(range) => state.mapped_bytes(range.clone()),
            Refused::Addresses(..) => 0,
        });
        state.kept.len() as u64 * self.piece + refused.sum::<u64>()
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

    /// Returns whether [`Pieces::release_kept`] has nothing to do.
    pub(super) fn keeps_nothing(&mut self) -> bool {
        let State { kept, refused, .. } = self.state.get_mut();
        kept.is_empty() && refused.is_empty()
    }

    /// Offers the driver once more what it refused to take back. Returns its first refusal.
    fn offer_again(&self) -> Result<(), DriverError> {
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
