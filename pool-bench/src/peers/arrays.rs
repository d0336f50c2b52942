//! Expressions of unmodified `ndarray` on f32, under each allocator as the global one: CPU time of
//! one thread. The floor writes the same results into arrays that are there, and warm.

use super::Peer;
use super::switch::with;
use crate::machine::{self, cpu_ns};
use crate::rounds::{Rounds, Row};
use ndarray::{Array1, Zip};
use std::hint::black_box;

const ROUNDS: usize = 15;

struct Arrays {
    a: Array1<f32>,
    b: Array1<f32>,
    outputs: [Array1<f32>; 3],
}

impl Arrays {
    fn new(elements: usize) -> Self {
        let output = || Array1::from_elem(elements, 1.0);
        Self {
            a: Array1::from_elem(elements, 1.5),
            b: Array1::from_elem(elements, 0.5),
            outputs: [output(), output(), output()],
        }
    }

    fn add(&self) {
        black_box(&self.a + &self.b);
    }

    fn tree(&self) {
        let (a, b) = (&self.a, &self.b);
        black_box(&(a + b) * &(a - b));
    }

    fn add_into(&mut self) {
        let Self { a, b, outputs: [sum, ..] } = self;
        Zip::from(&mut *sum).and(&*a).and(&*b).for_each(|o, a, b| *o = a + b);
        black_box(sum);
    }

    fn tree_into(&mut self) {
        let Self { a, b, outputs: [sum, difference, product] } = self;
        Zip::from(&mut *sum).and(&*a).and(&*b).for_each(|o, a, b| *o = a + b);
        Zip::from(&mut *difference).and(&*a).and(&*b).for_each(|o, a, b| *o = a - b);
        Zip::from(&mut *product).and(&*sum).and(&*difference).for_each(|o, a, b| *o = a * b);
        black_box(product);
    }
}

fn timed(count: u32, mut work: impl FnMut()) -> f64 {
    let start = cpu_ns();
    (0..count).for_each(|_| work());
    (cpu_ns() - start) as f64 / f64::from(count)
}

pub(super) fn run(name: &str, elements: usize, smoke: bool) -> Vec<Row> {
    let mut arrays = Arrays::new(elements);
    let count = match elements {
        _ if smoke => 2,
        0..=4096 => 5000,
        4097..=262_144 => 100,
        262_145..=2_097_152 => 8,
        _ => 3,
    };
    let mut names = vec!["floor"];
    names.extend(Peer::ALL.map(Peer::name));
    let rounds = Rounds::new(&names).run(if smoke { 2 } else { ROUNDS }, |at| {
        match (at.checked_sub(1).map(|at| Peer::ALL[at]), name) {
            (None, "add") => timed(count, || arrays.add_into()),
            (None, _) => timed(count, || arrays.tree_into()),
            (Some(peer), "add") => with(peer, || timed(count, || arrays.add())),
            (Some(peer), _) => with(peer, || timed(count, || arrays.tree())),
        }
    });
    rounds.rows(name, elements)
}

/// The most that is resident while the second expression runs under the tcache, beside what lives:
/// three results.
pub(super) fn resident(elements: usize) -> Vec<Row> {
    let arrays = Arrays::new(elements);
    let before = machine::resident();
    machine::reset_resident_peak();
    let ns = with(Peer::Tcache, || timed(10, || arrays.tree()));
    let resident = machine::resident_peak().saturating_sub(before);
    vec![Row {
        case: "resident".into(),
        size: elements as u64,
        allocator: Peer::Tcache.name().into(),
        ns,
        resident_peak_bytes: Some(resident),
        live_peak_bytes: Some(3 * 4 * elements as u64),
        ..Row::default()
    }]
}
