//! The requests of a training on one GPU, made up: what a GPT of 12 layers asks of its allocator.
//!
//! The model is GPT-2 small (Radford et al. 2019): hidden size 768, 12 heads, 50 304 tokens. It is
//! trained as `nanoGPT` and `PyTorch` do: mixed precision, whose copies of the weights in 16 bits live
//! until the backward pass ends; attention that keeps its result and one number for each row (Dao 2022);
//! each gradient of a weight made in 16 bits and added in 32; `AdamW` over all weights at once; the
//! gradients dropped after each step. A batch is five texts of one length, from 64 to 2047 tokens at
//! random.
//!
//! The forward pass runs on one thread and the backward pass on another, as in `PyTorch`, both on one
//! stream: the lanes 0 and 1. The sizes follow from the shapes; nothing was recorded. With 2047
//! tokens 9.5 GiB are live at once.

use pool_trace::{Kind, Log, Operation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Steps of a training.
pub const STEPS: u32 = 40;

const LAYERS: usize = 12;
const HIDDEN: u64 = 768;
const HEADS: u64 = 12;
const WORDS: u64 = 50_304;
const POSITIONS: u64 = 2048;
/// Texts of a batch.
const TEXTS: u64 = 5;
/// Bytes of a number in 16 and in 32 bits.
const HALF: u64 = 2;
const FULL: u64 = 4;

/// A block of memory that is live.
#[derive(Debug)]
struct Tensor(u64);

/// The requests so far.
struct Requests {
    log: Log,
    next: u64,
    /// The thread that runs.
    lane: u32,
}

/// A weight, in numbers of 32 bits.
struct Weight {
    numbers: u64,
    /// Whether a layer uses it as a matrix, in 16 bits.
    in_half: bool,
}

/// What the forward pass of a layer leaves for the backward pass, in the order of its making.
struct Saved {
    weights: usize,
    blocks: Vec<Tensor>,
}

impl Requests {
    fn take(&mut self, bytes: u64) -> Tensor {
        self.next += 1;
        self.note(Kind::Allocate, self.next, bytes);
        Tensor(self.next)
    }

    fn free(&mut self, Tensor(id): Tensor) {
        self.note(Kind::Free, id, 0);
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Tensor>) {
        for block in blocks {
            self.free(block);
        }
    }

    /// Memory that lives through one call.
    fn touch(&mut self, bytes: u64) {
        let block = self.take(bytes);
        self.free(block);
    }

    fn note(&mut self, kind: Kind, id: u64, bytes: u64) {
        let line = self.log.operations.len() as u64 + 1;
        let operation = Operation { kind, id, bytes, lane: self.lane, line, ..Default::default() };
        self.log.operations.push(operation);
    }
}

/// All weights, as they are used: embeddings, the layers, the last norm. The output uses the first
/// again.
fn weights() -> Vec<Weight> {
    let mut all = vec![
        Weight { numbers: WORDS * HIDDEN, in_half: true },
        Weight { numbers: POSITIONS * HIDDEN, in_half: false },
    ];
    for _ in 0..LAYERS {
        for (rows, columns) in [(0, 0), (3, 1), (1, 1), (0, 0), (4, 1), (1, 4)] {
            match rows * columns {
                // The scale and the shift of a norm.
                0 => all.extend([1, 1].map(|_| Weight { numbers: HIDDEN, in_half: false })),
                // A matrix and its bias.
                size => all.extend([
                    Weight { numbers: size * HIDDEN * HIDDEN, in_half: true },
                    Weight { numbers: rows * HIDDEN, in_half: true },
                ]),
            }
        }
    }
    all.extend([1, 1].map(|_| Weight { numbers: HIDDEN, in_half: false }));
    all
}

/// Returns the requests of `steps` steps of the training; the same ones for the same seed.
#[must_use]
pub fn log(steps: u32, seed: u64) -> Log {
    let source = format!("training of GPT-2 small, made up, seed {seed}");
    let log = Log { source, ..Log::default() };
    let (mut program, mut random) =
        (Requests { log, next: 0, lane: 0 }, StdRng::seed_from_u64(seed));
    let weights = weights();
    let _params: Vec<Tensor> = weights.iter().map(|it| program.take(it.numbers * FULL)).collect();
    let mut moments: Vec<Tensor> = Vec::new();
    for _ in 0..steps {
        let tokens = TEXTS * random.random_range(64..=POSITIONS - 1);
        let gradients = step(&mut program, &weights, tokens);
        if moments.is_empty() {
            let two = weights.iter().flat_map(|it| [it.numbers; 2]);
            moments = two.map(|numbers| program.take(numbers * FULL)).collect();
        }
        clip_and_update(&mut program, &weights);
        program.free_all(gradients);
    }
    program.log
}

/// The forward pass, the loss and the backward pass of a batch. Returns the gradients.
fn step(program: &mut Requests, weights: &[Weight], tokens: u64) -> Vec<Tensor> {
    program.lane = 0;
    let batch = [program.take(tokens * 8), program.take(tokens * 8)];
    let mut halves: Vec<Option<Tensor>> = weights.iter().map(|_| None).collect();
    let row = tokens * HIDDEN;
    // Embeddings of words and of positions, and their sum.
    let (words, places) = (program.take(row * FULL), program.take(row * FULL / TEXTS));
    let mut residual = program.take(row * FULL);
    program.free(words);
    program.free(places);
    let mut layers: Vec<Saved> = Vec::new();
    for layer in 0..LAYERS {
        let first = 2 + layer * 12;
        let (saved, sum) = forward(program, weights, &mut halves, first, residual, tokens);
        layers.push(saved);
        residual = sum;
    }
    // The last norm, the logits, and the loss in 32 bits.
    let statistics = [program.take(tokens * FULL), program.take(tokens * FULL)];
    let normed = program.take(row * FULL);
    let normed_half = program.take(row * HALF);
    program.free(normed);
    halve(program, weights, &mut halves, 0);
    let logits = program.take(tokens * WORDS * HALF);
    let wide = program.take(tokens * WORDS * FULL);
    let scores = program.take(tokens * WORDS * FULL);
    program.free(wide);
    program.free(logits);
    let loss = [program.take(4), program.take(4)];
    // The copies of the weights are saved for the backward pass.
    program.lane = 1;
    let mut gradients: Vec<Option<Tensor>> = weights.iter().map(|_| None).collect();
    let wide = program.take(tokens * WORDS * FULL);
    program.free(scores);
    let narrow = program.take(tokens * WORDS * HALF);
    program.free(wide);
    let mut upper = program.take(row * HALF);
    add_gradient(program, weights, &mut gradients, 0);
    program.free(narrow);
    program.free(normed_half);
    upper = widen(program, upper, row);
    upper = through_norm(program, weights, &mut gradients, weights.len() - 2, upper, row);
    program.free_all(statistics);
    program.free(residual);
    for saved in layers.into_iter().rev() {
        upper = backward(program, weights, &mut gradients, saved, upper, tokens);
    }
    // The embeddings' gradients.
    program.touch(WORDS * HIDDEN * FULL);
    gradients[1] = Some(program.take(weights[1].numbers * FULL));
    program.free(upper);
    program.free_all(halves.into_iter().flatten());
    program.free_all(loss.into_iter().chain(batch));
    gradients.into_iter().flatten().collect()
}

/// The copy of a weight in 16 bits, made by its first use.
fn halve(program: &mut Requests, weights: &[Weight], halves: &mut [Option<Tensor>], which: usize) {
    if weights[which].in_half && halves[which].is_none() {
        halves[which] = Some(program.take(weights[which].numbers * HALF));
    }
}

/// One layer. Returns what it saves, and its result.
fn forward(
    program: &mut Requests,
    weights: &[Weight],
    halves: &mut [Option<Tensor>],
    first: usize,
    residual: Tensor,
    tokens: u64,
) -> (Saved, Tensor) {
    let row = tokens * HIDDEN;
    let mut blocks = Vec::new();
    let norm = |program: &mut Requests, blocks: &mut Vec<Tensor>| {
        blocks.extend([program.take(tokens * FULL), program.take(tokens * FULL)]);
        let normed = program.take(row * FULL);
        blocks.push(program.take(row * HALF));
        program.free(normed);
    };
    norm(program, &mut blocks);
    for which in [2, 3] {
        halve(program, weights, halves, first + which);
    }
    blocks.push(program.take(3 * row * HALF));
    // Attention: its result, and one number for each row and head.
    blocks.push(program.take(row * HALF));
    blocks.push(program.take(tokens * HEADS * FULL));
    program.touch(16);
    for which in [4, 5] {
        halve(program, weights, halves, first + which);
    }
    let projected = program.take(row * HALF);
    let sum = program.take(row * FULL);
    program.free(projected);
    blocks.push(residual);
    norm(program, &mut blocks);
    for which in [8, 9] {
        halve(program, weights, halves, first + which);
    }
    blocks.push(program.take(4 * row * HALF));
    blocks.push(program.take(4 * row * HALF));
    for which in [10, 11] {
        halve(program, weights, halves, first + which);
    }
    let projected = program.take(row * HALF);
    let result = program.take(row * FULL);
    program.free(projected);
    blocks.push(sum);
    (Saved { weights: first, blocks }, result)
}

/// One layer backwards. Takes the gradient of its result, and returns that of what it was given.
fn backward(
    program: &mut Requests,
    weights: &[Weight],
    gradients: &mut [Option<Tensor>],
    saved: Saved,
    upper: Tensor,
    tokens: u64,
) -> Tensor {
    let (row, first) = (tokens * HIDDEN, saved.weights);
    let mut saved: Vec<Option<Tensor>> = saved.blocks.into_iter().map(Some).collect();
    let mut done = |program: &mut Requests, which: usize| {
        if let Some(block) = saved[which].take() {
            program.free(block);
        }
    };
    // The second half: projection, its activation, the first matrix, the norm.
    let narrow = program.take(row * HALF);
    let hidden = program.take(4 * row * HALF);
    matrix(program, weights, gradients, first + 10);
    done(program, 11);
    program.free(narrow);
    let active = program.take(4 * row * HALF);
    program.free(hidden);
    done(program, 10);
    let inner = program.take(row * HALF);
    matrix(program, weights, gradients, first + 8);
    program.free(active);
    done(program, 9);
    let wide = widen(program, inner, row);
    let inner = through_norm(program, weights, gradients, first + 6, wide, row);
    for which in [7, 8, 12] {
        done(program, which);
    }
    let middle = program.take(row * FULL);
    program.free(inner);
    program.free(upper);
    // The first half: projection, attention, the matrix, the norm.
    let narrow = program.take(row * HALF);
    let attended = program.take(row * HALF);
    matrix(program, weights, gradients, first + 4);
    program.free(narrow);
    let queries = program.take(3 * row * HALF);
    let parts = [(); 3].map(|()| program.take(row * HALF));
    program.touch(tokens * HEADS * FULL);
    program.free_all(parts);
    for which in [4, 5] {
        done(program, which);
    }
    program.free(attended);
    done(program, 3);
    let inner = program.take(row * HALF);
    matrix(program, weights, gradients, first + 2);
    program.free(queries);
    done(program, 2);
    let wide = widen(program, inner, row);
    let inner = through_norm(program, weights, gradients, first, wide, row);
    for which in [0, 1, 6] {
        done(program, which);
    }
    let lower = program.take(row * FULL);
    program.free(inner);
    program.free(middle);
    lower
}

/// The gradients of a matrix and its bias.
fn matrix(
    program: &mut Requests,
    weights: &[Weight],
    gradients: &mut [Option<Tensor>],
    first: usize,
) {
    add_gradient(program, weights, gradients, first);
    add_gradient(program, weights, gradients, first + 1);
}

/// A gradient in 16 bits, added to that in 32 bits, which the first one makes.
fn add_gradient(
    program: &mut Requests,
    weights: &[Weight],
    gradients: &mut [Option<Tensor>],
    which: usize,
) {
    let numbers = weights[which].numbers;
    let half = program.take(numbers * HALF);
    let full = program.take(numbers * FULL);
    program.free(half);
    match gradients[which] {
        None => gradients[which] = Some(full),
        Some(_) => program.free(full),
    }
}

/// A gradient in 32 bits in place of one in 16.
fn widen(program: &mut Requests, narrow: Tensor, numbers: u64) -> Tensor {
    let wide = program.take(numbers * FULL);
    program.free(narrow);
    wide
}

/// A norm backwards: the gradients of its scale and shift, with sums for each part of the rows.
fn through_norm(
    program: &mut Requests,
    weights: &[Weight],
    gradients: &mut [Option<Tensor>],
    first: usize,
    upper: Tensor,
    numbers: u64,
) -> Tensor {
    let lower = program.take(numbers * FULL);
    let parts = [(); 2].map(|()| program.take(64 * HIDDEN * FULL));
    for which in [first, first + 1] {
        gradients[which] = Some(program.take(weights[which].numbers * FULL));
    }
    program.free_all(parts);
    program.free(upper);
    lower
}

/// The norm of all gradients, and `AdamW` over all weights at once: one temporary for each of them.
fn clip_and_update(program: &mut Requests, weights: &[Weight]) {
    program.lane = 0;
    let norms: Vec<Tensor> = weights.iter().map(|_| program.take(4)).collect();
    program.touch(4 * weights.len() as u64);
    program.free_all(norms);
    let roots: Vec<Tensor> = weights.iter().map(|it| program.take(it.numbers * FULL)).collect();
    program.free_all(roots);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_leaves_the_weights_and_their_moments() {
        let log = log(3, 7);
        let weights: u64 = weights().iter().map(|it| it.numbers * FULL).sum();
        let mut live: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
        for operation in &log.operations {
            match operation.kind {
                Kind::Allocate => assert!(live.insert(operation.id, operation.bytes).is_none()),
                _ => assert!(live.remove(&operation.id).is_some(), "{operation:?}"),
            }
        }
        assert_eq!(live.values().sum::<u64>(), 3 * weights);
        assert!(weights > 490_000_000, "{weights}");
        assert!(log.operations.iter().any(|operation| operation.lane == 1));
    }
}
