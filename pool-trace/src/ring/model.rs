//! The ring in all interleavings, by loom. `cargo xtask ci` runs it.

use super::{Ring, WORDS, slots};
use loom::thread;
use std::sync::Arc;

/// Two threads put records into a ring of two slots while a third one reads.
#[test]
fn records_arrive_whole_or_are_counted_as_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ring = Arc::new(Ring::new(slots(2)));
        let writers: Vec<_> = (1..=2)
            .map(|writer| {
                let ring = ring.clone();
                thread::spawn(move || {
                    (0..2_u64).filter(|number| ring.push([writer * 10 + number; WORDS])).count()
                })
            })
            .collect();
        let mut read = Vec::new();
        for _ in 0..2 {
            read.extend(ring.pop());
        }
        let put: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        read.extend(std::iter::from_fn(|| ring.pop()));
        assert_eq!(read.len(), put);
        assert_eq!(put as u64 + ring.lost(), 4);
        for record in read {
            assert!(record.iter().all(|word| *word == record[0]), "{record:?}");
        }
    });
}
