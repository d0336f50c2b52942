//! Limits: how much a pool, or several of them, may take from a device and keep, and the requests
//! that wait under a limit.

mod asker;
mod budget;
mod cached;
mod ledger;
mod retention;
mod transit;
mod waiters;

pub(crate) use asker::{Asker, DeviceId};
pub use budget::{Budget, Pressure};
pub(crate) use budget::{Member, WakeBudget};
pub(crate) use cached::{BucketLimit, Buckets, CachedLimitNow};
pub use cached::{CachedLimit, FullBucket, FullPool};
pub(crate) use ledger::{Ledger, Shortfall};
pub use retention::Retention;
pub(crate) use retention::{GivenBack, Ticks};
pub(crate) use transit::{InTransit, Transit};
pub(crate) use waiters::{Kind, Lacks, NextStep, Ticket};
