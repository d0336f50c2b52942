//! The double follows the driver's documentation: a test for each item of section E of the audit of
//! November 2026. Code numbers are those of `CUresult`.

mod absent;
mod calls;
mod captures;
mod memory;
mod strict;
