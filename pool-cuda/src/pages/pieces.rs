//! Physical pieces of memory, and the addresses that they are mapped at.
//!
//! Each piece has a handle, and each driver call costs time for each handle that it touches, so
//! pieces are large, and a few that are unmapped stay for the next mapping. Setting access and
//! unmapping may wait for the device. An open pool makes both calls in a miss and in a trim, where
//! a wait is acceptable, and in no drop.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::abi::{Access, Properties};
use cudarc::driver::{DriverError, sys};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Mapped pieces, by address.
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
#[derive(Clone, Copy, Debug)]
enum Refused {
    /// The handle of an unmapped piece.
    Handle(u64),
    /// A range at which pieces are mapped.
    Mapped(u64, u64),
    /// Reserved addresses: where, and how many bytes.
    Addresses(u64, usize),
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
        Self { properties, access, piece, most_kept, state: Mutex::default() }
    }

    /// Maps memory at all of a range, in pieces of `piece` bytes, or at none of it.
    pub(super) fn map(&self, at: u64, bytes: u64, piece: u64) -> Result<(), DriverError> {
        let state = &mut *self.state.lock();
        self.offer_again(state);
        let mut end = at;
        let mut all = || {
            while end < at + bytes {
                self.map_piece(state, end, piece)?;
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
        if done.is_err() && end > at && self.unmap_range(state, at..end).is_err() {
            state.refused.push(Refused::Mapped(at, end));
        }
        done
    }

    fn map_piece(&self, state: &mut State, at: u64, bytes: u64) -> Result<(), DriverError> {
        let kept = if bytes == self.piece { state.kept.pop() } else { None };
        let handle = kept.map_or_else(|| self.create(state, bytes), Ok)?;
        // SAFETY: the addresses are reserved and nothing is mapped there, as the callers guarantee;
        // the handle is of a piece of this size, which is mapped nowhere.
        let mapped = unsafe { sys::cuMemMap(at, size(bytes), 0, handle, 0) }.result();
        match mapped {
            Ok(()) => state.mapped.insert(at, Piece { bytes, handle }).map_or((), drop),
            Err(_) => state.release(handle),
        }
        mapped
    }

    /// Makes a piece. Kept pieces of another size go back if the device has no memory left.
    fn create(&self, state: &mut State, bytes: u64) -> Result<u64, DriverError> {
        let mut handle = 0;
        let mut create = || {
            let properties = self.properties.as_ptr();
            // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
            unsafe { sys::cuMemCreate(&raw mut handle, size(bytes), properties, 0) }.result()
        };
        let created = create();
        let is_full = created.is_err_and(|e| e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        if is_full && !state.kept.is_empty() {
            state.release_kept();
            create()?;
        } else {
            created?;
        }
        Ok(handle)
    }

    /// Unmaps all of a range, which is mapped, in one call. Its pieces are kept or go back.
    pub(super) fn unmap(&self, range: Range<u64>) -> Result<(), DriverError> {
        let state = &mut *self.state.lock();
        self.offer_again(state);
        self.unmap_range(state, range)
    }

    fn unmap_range(&self, state: &mut State, range: Range<u64>) -> Result<(), DriverError> {
        // SAFETY: all of the range is mapped in whole pieces, as the callers guarantee, and no work
        // uses it: they have waited for its marks.
        unsafe { sys::cuMemUnmap(range.start, size(range.end - range.start)) }.result()?;
        state.refused.retain(|refused| match refused {
            Refused::Mapped(at, _) => !range.contains(at),
            Refused::Handle(_) | Refused::Addresses(..) => true,
        });
        let gone: Vec<u64> = state.mapped.range(range).map(|(at, _)| *at).collect();
        for at in gone {
            let Some(Piece { bytes, handle }) = state.mapped.remove(&at) else { continue };
            if bytes == self.piece && state.kept.len() < self.most_kept {
                state.kept.push(handle);
            } else {
                state.release(handle);
            }
        }
        Ok(())
    }

    /// Unmaps whatever is mapped in a range, in one call for each stretch.
    pub(super) fn unmap_any(&self, range: Range<u64>) -> Result<(), DriverError> {
        let state = &mut *self.state.lock();
        self.offer_again(state);
        let mut stretches: Vec<Range<u64>> = Vec::new();
        for (at, piece) in state.mapped.range(range) {
            match stretches.last_mut() {
                Some(last) if last.end == *at => last.end += piece.bytes,
                _ => stretches.push(*at..at + piece.bytes),
            }
        }
        stretches.into_iter().try_for_each(|stretch| self.unmap_range(state, stretch))
    }

    /// Gives the kept pieces back to the device, and what it refused before.
    pub(super) fn release_kept(&self) {
        let state = &mut *self.state.lock();
        state.release_kept();
        self.offer_again(state);
    }

    /// Returns the bytes of the pieces that are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.state.lock().kept.len() as u64 * self.piece
    }

    /// Notes addresses that the driver refused to take back.
    pub(super) fn refused_addresses(&self, at: u64, bytes: usize) {
        self.state.lock().refused.push(Refused::Addresses(at, bytes));
    }

    /// Returns whether [`Pieces::release_kept`] has something to do.
    pub(super) fn keeps_nothing(&mut self) -> bool {
        let State { kept, refused, .. } = self.state.get_mut();
        kept.is_empty() && refused.is_empty()
    }

    /// Offers the driver once more what it refused to take back.
    fn offer_again(&self, state: &mut State) {
        for refused in std::mem::take(&mut state.refused) {
            let taken = match refused {
                // SAFETY: as in `State::release`: the driver refused it, so it was not given back.
                Refused::Handle(handle) => unsafe { sys::cuMemRelease(handle) }.result(),
                Refused::Mapped(at, end) => self.unmap_range(state, at..end),
                // SAFETY: reserved with this length and nothing is mapped there; the driver refuses
                // while something is.
                Refused::Addresses(at, n) => unsafe { sys::cuMemAddressFree(at, n) }.result(),
            };
            if taken.is_err() {
                state.refused.push(refused);
            }
        }
    }
}

impl State {
    /// Gives the handle of an unmapped piece back.
    fn release(&mut self, handle: u64) {
        // SAFETY: the handle came from `create`, is given back once, and its piece is mapped
        // nowhere.
        if unsafe { sys::cuMemRelease(handle) }.result().is_err() {
            self.refused.push(Refused::Handle(handle));
        }
    }

    fn release_kept(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        for handle in kept {
            self.release(handle);
        }
    }
}
