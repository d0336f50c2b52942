//! Presets, configuration files, and pools whose memory is chosen when the program runs, over the
//! simulated device.
#![cfg(not(any(loom, shuttle)))]

mod any;
mod caching;
mod file;
mod keys;
mod presets;
