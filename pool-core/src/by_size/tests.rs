//! Entries in order beside a sorted set.

use crate::by_size::{Entries, SizeKey, SizeLinks, SizeSteps};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeSet;

/// Entries that count how often they are looked at.
#[derive(Default)]
struct Counted {
    all: Vec<(SizeKey, SizeLinks)>,
    looks: Cell<usize>,
}

impl Counted {
    fn of(sizes: impl Iterator<Item = u64>) -> Self {
        let key = |(at, bytes)| SizeKey { bytes, born: 0, offset: at };
        let all = (0..).zip(sizes).map(|entry| (key(entry), SizeLinks::NONE)).collect();
        Self { all, looks: Cell::new(0) }
    }

    fn look(&self) {
        self.looks.set(self.looks.get() + 1);
    }
}

impl Entries for Counted {
    fn key(&self, id: u32) -> SizeKey {
        self.look();
        self.all[id as usize].0
    }
    fn links(&self, id: u32) -> SizeLinks {
        self.look();
        self.all[id as usize].1
    }
    fn links_mut(&mut self, id: u32) -> &mut SizeLinks {
        self.look();
        &mut self.all[id as usize].1
    }
}

/// Gives an entry another size, and follows it.
fn resize(steps: &mut SizeSteps, entries: &mut Counted, id: u32, bytes: u64) {
    let (key, links) = &mut entries.all[id as usize];
    let (was, own) = (*key, links.step);
    key.bytes = bytes;
    steps.resize(entries, (id, own), was, bytes);
}

#[test]
fn entries_that_come_change_and_go_are_found_in_order() {
    for seed in 0..if cfg!(miri) { 2 } else { 40 } {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed as u64);
        let most = [4_u64, 40, 4000].into_iter().cycle().nth(seed).unwrap_or(4);
        let mut size = || random.random_range(1..most) * 512;
        let mut entries = Counted::of((0..12).map(|_| size()));
        let mut sizes: Vec<u64> = (0..3000).map(|_| size()).collect();
        let mut random = StdRng::seed_from_u64(seed as u64);
        let (mut steps, mut set) = (SizeSteps::new(9, true), BTreeSet::<(SizeKey, u32)>::new());
        while let Some(bytes) = sizes.pop() {
            let id = random.random_range(0..12);
            let key = entries.all[id as usize].0;
            if !set.remove(&(key, id)) {
                entries.all[id as usize].0.bytes = bytes;
                steps.insert(&mut entries, id);
                set.insert((entries.all[id as usize].0, id));
            } else if random.random_range(0..4) == 0 {
                steps.remove(&mut entries, id, key);
            } else {
                resize(&mut steps, &mut entries, id, bytes);
                set.insert((entries.all[id as usize].0, id));
            }
            let sum: u64 = set.iter().map(|(key, _)| key.bytes).sum();
            assert_eq!(steps.bytes(), sum);
            let up = set.iter().map(|(_, id)| *id);
            assert!(steps.ascending(&entries, 0).eq(up.clone()), "{set:?}");
            assert!(steps.descending(&entries).eq(up.rev()), "{set:?}");
            let from = SizeKey::least(bytes);
            let first = set.range((from, 0)..).next().map(|(_, id)| *id);
            assert_eq!(steps.first_from(&entries, from), first, "from {bytes} of {set:?}");
        }
    }
}

#[test]
fn an_entry_that_changes_to_and_fro_is_looked_at_a_few_times() {
    let mut entries = Counted::of((1..=1000).map(|at| at * 512));
    let mut steps = SizeSteps::new(9, true);
    (0..1000).for_each(|id| steps.insert(&mut entries, id));
    resize(&mut steps, &mut entries, 999, 512 * 900);
    entries.looks.set(0);
    for _ in 0..100 {
        resize(&mut steps, &mut entries, 999, 512);
        resize(&mut steps, &mut entries, 999, 512 * 900);
    }
    assert_eq!(entries.looks.get(), 0, "it is in no tree");
    resize(&mut steps, &mut entries, 500, 512);
    assert!(steps.ascending(&entries, 512 * 899).any(|id| id == 999), "it is in one again");
}
