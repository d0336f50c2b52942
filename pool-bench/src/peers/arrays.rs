//! Expressions of unmodified `ndarray` on f32, under each allocator as the global one: CPU time of
//! one thread. The floor has the same results in memory that is there and warm, by the one of six
//! ways that is fastest in this process.

use super::Peer;
use super::switch::with;
use crate::apart::Process;
use crate::machine::{self, cpu_ns};
use crate::rounds::{Rounds, Row};
use ndarray::{Array1, ArrayView1, ArrayViewMut1, Zip};
use std::hint::black_box;

const ROUNDS: usize = 15;

/// Numbers of a page of 4096 bytes.
const PAGE: usize = 1024;
/// Where outputs begin in their pages, beyond where the first input begins: together with it, and
/// apart, since a load waits for an earlier store whose address has the same low 12 bits.
const PLACES: [usize; 3] = [0, PAGE / 4, PAGE / 2];
/// The ways of the floor: a place, and whether the loop is `ndarray`'s or one over slices.
const WAYS: usize = 2 * PLACES.len();

/// Warm numbers at a place in their page.
#[derive(Default)]
struct WarmOutput {
    numbers: Vec<f32>,
    start: usize,
    elements: usize,
}

impl WarmOutput {
    /// `elements` numbers, which begin at `place` in a page.
    fn new(elements: usize, place: usize) -> Self {
        let numbers = vec![1.0; elements + 2 * PAGE];
        let address = numbers.as_ptr().addr() / size_of::<f32>();
        let start = address.next_multiple_of(PAGE) - address + place % PAGE;
        Self { numbers, start, elements }
    }

    fn get(&mut self) -> &mut [f32] {
        &mut self.numbers[self.start..self.start + self.elements]
    }
}

struct Arrays {
    a: Array1<f32>,
    b: Array1<f32>,
    /// Three for each place.
    outputs: [[WarmOutput; 3]; PLACES.len()],
}

/// `out = work(a, b)`, element by element.
fn each(by_slices: bool, out: &mut [f32], a: &[f32], b: &[f32], work: impl Fn(f32, f32) -> f32) {
    if by_slices {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = work(*a, *b);
        }
    } else {
        let [a, b] = [a, b].map(ArrayView1::from);
        let out = ArrayViewMut1::from(out);
        Zip::from(out).and(a).and(b).for_each(|out, a, b| *out = work(*a, *b));
    }
}

impl Arrays {
    fn new(elements: usize) -> Self {
        let a = Array1::from_elem(elements, 1.5);
        let input = a.as_ptr().addr() / size_of::<f32>();
        // Rounded to a cache line of 16 numbers.
        let place = |number: usize, place: usize| (input + place + number * PAGE / 8) / 16 * 16;
        Self {
            outputs: PLACES.map(|at| [0, 1, 2].map(|n| WarmOutput::new(elements, place(n, at)))),
            b: Array1::from_elem(elements, 0.5),
            a,
        }
    }

    fn add(&self) {
        black_box(&self.a + &self.b);
    }

    fn tree(&self) {
        let (a, b) = (&self.a, &self.b);
        black_box(&(a + b) * &(a - b));
    }

    fn add_into(&mut self, way: usize) {
        let Self { a, b, outputs } = self;
        let (a, b) = (slice(a), slice(b));
        let [sum, ..] = &mut outputs[way / 2];
        each(way.is_multiple_of(2), sum.get(), a, b, |a, b| a + b);
        black_box(sum);
    }

    fn tree_into(&mut self, way: usize) {
        let Self { a, b, outputs } = self;
        let (a, b, by_slices) = (slice(a), slice(b), way.is_multiple_of(2));
        let [sum, difference, product] = &mut outputs[way / 2];
        each(by_slices, sum.get(), a, b, |a, b| a + b);
        each(by_slices, difference.get(), a, b, |a, b| a - b);
        each(by_slices, product.get(), sum.get(), difference.get(), |a, b| a * b);
        black_box(product);
    }

    /// The way that is fastest here, by the least of three times each.
    fn fastest(&mut self, count: u32, work: impl Fn(&mut Self, usize)) -> usize {
        let mut least = |way: usize| {
            let times = (0..3).map(|_| timed(count, || work(self, way)));
            times.fold(f64::INFINITY, f64::min)
        };
        let times: Vec<f64> = (0..WAYS).map(&mut least).collect();
        (0..WAYS).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0)
    }
}

fn slice(array: &Array1<f32>) -> &[f32] {
    array.as_slice().unwrap_or(&[])
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
    let way = match name {
        "add" => arrays.fastest(count, Arrays::add_into),
        _ => arrays.fastest(count, Arrays::tree_into),
    };
    let mut names = vec!["floor"];
    names.extend(Peer::names());
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let rounds = Rounds::of(&names, rounds, process.seed, |at| {
        match (at.checked_sub(1).map(|at| Peer::ALL[at]), name) {
            (None, "add") => timed(count, || arrays.add_into(way)),
            (None, _) => timed(count, || arrays.tree_into(way)),
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
