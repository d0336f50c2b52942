//! Expressions of unmodified `ndarray` on f32, under each allocator as the global one: CPU time of
//! one thread. The floor writes the same results into memory that is there, warm, and aligned to
//! cache lines, which a block behind an allocator's header is not.

use super::Peer;
use super::switch::with;
use crate::apart::Process;
use crate::machine::{self, cpu_ns};
use crate::rounds::{Rounds, Row};
use ndarray::Array1;
use std::hint::black_box;

const ROUNDS: usize = 15;

/// Numbers of a cache line of 64 bytes.
const LINE: usize = 16;

/// Warm numbers that begin at a cache line, each output some lines further than the one before, so
/// that reads and writes at the same offset do not meet in one set of the cache.
#[derive(Default)]
struct Output {
    numbers: Vec<f32>,
    start: usize,
    elements: usize,
}

impl Output {
    fn new(elements: usize, number: usize) -> Self {
        let numbers = vec![1.0; elements + (8 * number + 10) * LINE];
        let address = numbers.as_ptr().addr() / size_of::<f32>();
        let start = address.next_multiple_of(LINE) - address + 8 * number * LINE;
        Self { numbers, start, elements }
    }

    fn get(&mut self) -> &mut [f32] {
        &mut self.numbers[self.start..self.start + self.elements]
    }
}

struct Arrays {
    a: Array1<f32>,
    b: Array1<f32>,
    outputs: [Output; 3],
}

/// `out = work(a, b)`, element by element.
fn each(out: &mut [f32], a: &[f32], b: &[f32], work: impl Fn(f32, f32) -> f32) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = work(*a, *b);
    }
}

impl Arrays {
    fn new(elements: usize) -> Self {
        Self {
            a: Array1::from_elem(elements, 1.5),
            b: Array1::from_elem(elements, 0.5),
            outputs: [0, 1, 2].map(|number| Output::new(elements, number)),
        }
    }

    fn add(&self) {
        black_box(&self.a + &self.b);
    }

    fn tree(&self) {
        let (a, b) = (&self.a, &self.b);
        black_box(&(a + b) * &(a - b));
    }

    fn inputs(&self) -> (&[f32], &[f32]) {
        (self.a.as_slice().unwrap_or(&[]), self.b.as_slice().unwrap_or(&[]))
    }

    fn add_into(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        let (a, b) = self.inputs();
        each(outputs[0].get(), a, b, |a, b| a + b);
        self.outputs = black_box(outputs);
    }

    fn tree_into(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        let (a, b) = self.inputs();
        let [sum, difference, product] = &mut outputs;
        each(sum.get(), a, b, |a, b| a + b);
        each(difference.get(), a, b, |a, b| a - b);
        each(product.get(), sum.get(), difference.get(), |a, b| a * b);
        self.outputs = black_box(outputs);
    }
}

fn timed(count: u32, mut work: impl FnMut()) -> f64 {
    let start = cpu_ns();
    (0..count).for_each(|_| work());
    (cpu_ns() - start) as f64 / f64::from(count)
}

pub(super) fn run(name: &str, elements: usize, process: &Process) -> Vec<Row> {
    let mut arrays = Arrays::new(elements);
    let count = match elements {
        _ if process.smoke => 2,
        0..=4096 => 5000,
        4097..=262_144 => 100,
        262_145..=2_097_152 => 8,
        _ => 3,
    };
    let mut names = vec!["floor"];
    names.extend(Peer::ALL.map(Peer::name));
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let rounds = Rounds::of(&names, rounds, process.seed, |at| {
        match (at.checked_sub(1).map(|at| Peer::ALL[at]), name) {
            (None, "add") => timed(count, || arrays.add_into()),
            (None, _) => timed(count, || arrays.tree_into()),
            (Some(peer), "add") => with(peer, || timed(count, || arrays.add())),
            (Some(peer), _) => with(peer, || timed(count, || arrays.tree())),
        }
    });
    rounds.rows(name, elements as u64)
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
        contender: Peer::Tcache.name().into(),
        samples: vec![vec![Some(ns)]],
        resident_peak_bytes: Some(resident),
        live_peak_bytes: Some(3 * 4 * elements as u64),
        ..Row::default()
    }]
}
