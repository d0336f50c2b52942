//! The calls of a simulated device: their kinds, their counts, and their scripted failures.

use pool_core::{DeviceError, Why};

/// The calls of a simulated device that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCall {
    /// Allocating a block.
    Allocate,
    /// Freeing a block. If it fails, the device keeps the block, and no caller can reach it.
    Free,
    /// Recording an event.
    Record,
    /// Making a stream wait for an event on the device.
    Wait,
    /// Querying an event.
    Query,
    /// Reserving addresses.
    Reserve,
    /// Committing memory to addresses.
    Commit,
    /// Decommitting memory. If it fails, the device keeps the memory where it is.
    Decommit,
}

impl SimCall {
    /// All kinds of calls.
    pub const ALL: [Self; 8] = [
        Self::Allocate,
        Self::Free,
        Self::Record,
        Self::Wait,
        Self::Query,
        Self::Reserve,
        Self::Commit,
        Self::Decommit,
    ];
}

/// Successful calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimCalls {
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks and reservations freed.
    pub frees: u64,
    /// Events recorded.
    pub records: u64,
    /// Waits for events on the device.
    pub waits: u64,
    /// Queries of events.
    pub queries: u64,
    /// Reservations made.
    pub reservations: u64,
    /// Ranges of pages committed.
    pub commits: u64,
    /// Ranges of pages decommitted.
    pub decommits: u64,
}

/// Calls that are to fail, and when the device is lost.
#[derive(Debug, Default)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    /// Calls until the device is lost; `None` if no loss is scripted.
    calls_left: Option<u64>,
}

#[derive(Debug)]
struct Fault {
    call: SimCall,
    skip: u64,
    times: u64,
}

impl Faults {
    pub(super) fn fail(&mut self, call: SimCall, skip: u64, times: u64) {
        self.faults.retain(|fault| fault.times > 0);
        self.faults.push(Fault { call, skip, times });
    }

    pub(super) fn lose_after(&mut self, calls: u64) {
        self.calls_left = Some(calls);
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
    }

    pub(super) fn pending(&self) -> u64 {
        self.faults.iter().map(|fault| fault.times).sum()
    }

    /// Counts a call, and returns an error if the call is to fail.
    pub(super) fn check(
        &mut self,
        call: SimCall,
        why: Why,
        name: &'static str,
    ) -> Result<(), DeviceError> {
        self.count_toward_loss(name)?;
        for fault in self.faults.iter_mut().filter(|fault| fault.call == call && fault.times > 0) {
            if fault.skip == 0 {
                fault.times -= 1;
                return Err(DeviceError::new(why, name).code(-1));
            }
            fault.skip -= 1;
        }
        Ok(())
    }

    /// Counts a call, and returns an error once the device is lost.
    pub(super) fn count_toward_loss(&mut self, name: &'static str) -> Result<(), DeviceError> {
        match &mut self.calls_left {
            Some(0) => return Err(DeviceError::new(Why::Lost, name).code(-2)),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}
