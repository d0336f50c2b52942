//! Blocks ahead of requests, compared with the other settings of a pool.

use crate::error::ConfigError;
use crate::limits::{BucketLimit, CachedLimit, FullPool};
use crate::pool::builder::PoolBuilder;
use crate::port::DeviceAllocator;
use crate::size::{Bytes, SizeClasses};
use crate::store::Layout;
use std::collections::BTreeMap;

/// The blocks of [`PoolBuilder::ahead`], as the pool would allocate them.
pub(super) struct BlocksAhead {
    /// The number of blocks of each class, by its bytes.
    counts: BTreeMap<u64, usize>,
    /// Bytes that the pool reserves for them at least.
    reserved: u64,
    /// Bytes of free memory that it has then at least.
    cached: u64,
}

impl BlocksAhead {
    /// Refuses blocks ahead that no [`warm_up`](crate::BucketPool::warm_up) could allocate under the
    /// other settings of the builder.
    ///
    /// With an arena it computes the least bytes that the blocks need; the arena may need more. There
    /// each pair of a size and a count is for itself, since blocks of one pair may lie in the memory that
    /// those of another took.
    pub(super) fn check<A: DeviceAllocator>(
        builder: &PoolBuilder<A>,
        layout: &Layout<A>,
        classes: &SizeClasses,
    ) -> Result<(), ConfigError> {
        let together = if layout.is_arena() { 1 } else { builder.ahead.len().max(1) };
        let mut groups = builder.ahead.chunks(together);
        groups.try_for_each(|group| {
            let blocks = Self::new(group, builder, (layout, classes))?;
            if blocks.counts.is_empty() { Ok(()) } else { blocks.check_limits(builder, layout) }
        })
    }

    /// Counts blocks by their classes. Refuses sizes that have none.
    fn new<A: DeviceAllocator>(
        group: &[(u64, usize)],
        builder: &PoolBuilder<A>,
        (layout, classes): (&Layout<A>, &SizeClasses),
    ) -> Result<Self, ConfigError> {
        let mut blocks = Self { counts: BTreeMap::new(), reserved: 0, cached: 0 };
        let (mut sum, mut segment) = (0_u64, 0);
        for (bytes, count) in group.iter().filter(|(_, count)| *count > 0) {
            let class = classes.of(*bytes).filter(|class| class.is_cached());
            let Some(class) = class.map(|class| class.bytes) else {
                let setting = format!("`ahead` of a block of {bytes} B");
                let expected = match builder.window.contains(&(*bytes).max(1)) {
                    true => format!("a size that `{}` caches", builder.policy_or_default()),
                    false => format!("a size in the `window` of {:?} B", builder.window),
                };
                let why = "this one bypasses the pool";
                return Err(ConfigError::new(setting, format!("{expected}; {why}")));
            };
            let of_class = blocks.counts.entry(class).or_default();
            *of_class = of_class.saturating_add(*count);
            sum = sum.saturating_add(class.saturating_mul(*count as u64));
            let arena = layout.arena.as_ref().filter(|_| !layout.has_pages());
            let of_segment = arena.and_then(|arena| arena.segment_bytes(class));
            segment = segment.max(of_segment.unwrap_or(0));
        }
        blocks.reserved = layout.bytes_to_grow(sum);
        // Where there is no room for a segment, the arena takes what a block needs.
        let is_taken = segment <= builder.bound_on_reserved_bytes().min(builder.total_bytes());
        blocks.cached = blocks.reserved.max(if is_taken { segment } else { 0 });
        Ok(blocks)
    }

    fn check_limits<A: DeviceAllocator>(
        &self,
        builder: &PoolBuilder<A>,
        layout: &Layout<A>,
    ) -> Result<(), ConfigError> {
        if layout.uncached {
            let expected = "none: such an arena caches no block";
            return Err(ConfigError::new(self.named("with an `uncached` arena"), expected));
        }
        if !layout.is_arena() {
            self.check_buckets(builder.bucket_limit)?;
        }
        let whole = (!layout.is_arena()).then_some(builder.full_pool);
        self.check_cached(builder.bound_on_cached_bytes(), whole)?;
        let limit = builder.bound_on_reserved_bytes();
        if self.reserved > limit {
            let setting = self.named(format_args!(": {} in all", Bytes(self.reserved)));
            let expected = format!("at most the reserved limit of {}", Bytes(limit));
            return Err(ConfigError::new(setting, expected));
        }
        Ok(())
    }

    fn check_buckets(&self, limit: BucketLimit) -> Result<(), ConfigError> {
        let is_over = |(bytes, count): &(&u64, &usize)| **count > limit.of(**bytes);
        let Some((bytes, count)) = self.counts.iter().find(is_over) else { return Ok(()) };
        let name = match *bytes < limit.large_min_bytes {
            true => "bucket_limit",
            false => "large_bucket_limit",
        };
        let setting = format!("`ahead` of {count} blocks of {}", Bytes(*bytes));
        let most = limit.of(*bytes);
        Err(ConfigError::new(setting, format!("at most the `{name}` of {most}")))
    }

    /// `whole`: what a full pool of whole blocks does.
    fn check_cached(&self, limit: CachedLimit, whole: Option<FullPool>) -> Result<(), ConfigError> {
        if let CachedLimit::OfPeak(_) = limit {
            let setting = self.named("with a cached limit that is a share of the peak");
            return Err(ConfigError::new(setting, "none: it is 0 before the first allocation"));
        }
        let most = limit.bytes(0);
        let largest = self.counts.last_key_value().map_or(0, |(bytes, _)| *bytes);
        if let Some(full) = whole.filter(|full| largest > full.largest(most)) {
            let setting = format!("`ahead` of a block of {}", Bytes(largest));
            let part = if full == FullPool::EvictOldest { "half of " } else { "" };
            let expected = format!("at most {part}the `cached_limit` of {}", Bytes(most));
            return Err(ConfigError::new(setting, expected + ": a larger block is not cached"));
        }
        if self.cached > most {
            let setting = self.named(format_args!(": {} in all", Bytes(self.cached)));
            let expected = format!("at most the `cached_limit` of {}", Bytes(most));
            return Err(ConfigError::new(setting, expected));
        }
        Ok(())
    }

    /// The setting, and what is said of it.
    fn named(&self, what: impl std::fmt::Display) -> String {
        let what = what.to_string();
        let gap = if what.starts_with(':') { "" } else { " " };
        let total = self.counts.values().fold(0_usize, |sum, count| sum.saturating_add(*count));
        match self.counts.iter().next() {
            Some((bytes, _)) if self.counts.len() == 1 => {
                let blocks = if total == 1 { "block" } else { "blocks" };
                format!("`ahead` of {total} {blocks} of {}{gap}{what}", Bytes(*bytes))
            }
            _ => format!("`ahead` of {total} blocks of {} sizes{gap}{what}", self.counts.len()),
        }
    }
}
