use super::*;
use crate::pages::Taken;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[test]
fn whatever_was_used_of_a_block_it_reads_as_zeroes() {
    (1..4).for_each(zeroes_of_random_blocks);
}

fn zeroes_of_random_blocks(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let pages = Pages::new();
    for round in 0..60 {
        if round == 50 {
            pages.be_quiet(); // as in a sandbox
        }
        let bytes = random.random_range(FROM - 2 * PAGE..3 * FROM);
        let align = 1 << random.random_range(0..22);
        let taken = pages.take(bytes, align);
        let Some(Taken { block, .. }) = taken else { panic!("no memory, seed {seed}") };
        // SAFETY: the block is this test's own, and its pages came from the system.
        let held = unsafe { slice::from_raw_parts_mut(block, bytes) };
        for _ in 0..random.random_range(0..6) {
            let (from, to) = (random.random_range(0..bytes), random.random_range(0..bytes));
            held[from.min(to)..=from.max(to)].fill(random.random());
        }
        // SAFETY: as above; its contents are not needed.
        unsafe { pages.zero(block, bytes) };
        let first = held.iter().position(|byte| *byte != 0);
        assert_eq!(first, None, "of {bytes} bytes in round {round}, seed {seed}");
        // SAFETY: the block is not used again.
        unsafe { pages.give(block) };
    }
}
