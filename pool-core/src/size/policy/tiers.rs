//! The classes of a list, found by the bits of a request.

/// A class: the largest request that it serves, and the bytes of its blocks.
#[derive(Clone, Copy, Debug)]
struct Tier {
    most: u64,
    bytes: u64,
}

/// Classes in ascending order.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    classes: Vec<Tier>,
    /// For each number of bits the first class that serves a request whose predecessor has so many.
    first: [u32; 66],
}

impl Tiers {
    /// The classes of an ascending list as far as `bytes_of` says how many bytes their blocks have.
    pub(super) fn new(list: &[u64], bytes_of: impl Fn(u64) -> Option<u64>) -> Self {
        let tier = |most: &u64| Some(Tier { most: *most, bytes: bytes_of(*most)? });
        let classes: Vec<_> = list.iter().map_while(tier).collect();
        let mut first = [0; 66];
        for (bits, first) in (0..).zip(&mut first) {
            let least = 1_u128 << bits >> 1; // the least number of so many bits
            let below = classes.partition_point(|class| u128::from(class.most) <= least);
            *first = u32::try_from(below).unwrap_or(u32::MAX);
        }
        Self { classes, first }
    }

    /// The bytes of the smallest class that holds a request; `None` if none does.
    #[inline]
    pub(super) fn bytes_for(&self, requested: u64) -> Option<u64> {
        let bits = (u64::BITS - requested.saturating_sub(1).leading_zeros()) as usize;
        let (from, to) = (self.first[bits] as usize, self.first[bits + 1] as usize);
        let mut at = from;
        if from < to {
            at += self.classes.get(from..to)?.partition_point(|class| class.most < requested);
        }
        self.classes.get(at).map(|class| class.bytes)
    }

    /// The largest request that has a class.
    pub(super) fn most(&self) -> Option<u64> {
        self.classes.last().map(|class| class.most)
    }
}
