//! Sizes: units of bytes, and the rules that round a request to the size of its block.

mod policy;
mod units;

pub use policy::BucketPolicy;
pub use policy::text::{BadPolicy, PolicyForm};
pub(crate) use policy::{Class, SizeClasses};
pub(crate) use units::LARGEST;
pub use units::{BadShare, BadSize, Bytes, GIB, KIB, MIB, ShareText, SizeText};
