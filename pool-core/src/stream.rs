//! Streams: the order of a device's work, which marks memory waits for, and the events behind them.

pub(crate) mod clock;
pub(crate) mod marks;
pub(crate) mod order;
pub(crate) mod timeline;
