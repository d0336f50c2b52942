//! Tests of the pool over the simulated device. `cargo test -p pool-core --test pool limits::` runs
//! one file of them.

mod arena;
mod broken_backends;
mod budgets;
mod caches;
mod captures;
mod cpu_visible;
mod failures;
mod hooked;
mod inside;
mod invariants;
mod limits;
mod lives;
mod locks;
mod many_blocks;
mod messages;
mod observers;
mod odd_kinds;
mod panics;
mod ranges;
mod readers;
mod refusals;
mod regressions;
mod regressions_arena;
mod regressions_faults;
mod schedules;
mod scripts;
mod settings;
mod shards;
mod shards_faults;
mod sim;
mod streams;
mod unwinding;
mod waiting;
mod waits_at_random;
mod zeroing;
