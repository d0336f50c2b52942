//! Two substances that react and spread (Gray and Scott, 1984; Pearson, Science 261, 1993), as one
//! writes it down with arrays: each operation makes a new one.

use ndarray::{Array2, s};
use std::hint::black_box;

const SIDE: usize = 512;
const SPREAD: [f32; 2] = [0.16, 0.08];
const FEED: f32 = 0.035;
const KILL: f32 = 0.065;

/// The neighbours of each cell, less four times itself; the edges stay as they are.
fn laplace(of: &Array2<f32>) -> Array2<f32> {
    let mut out = Array2::zeros(of.dim());
    let inside = &of.slice(s![..-2, 1..-1])
        + &of.slice(s![2.., 1..-1])
        + &of.slice(s![1..-1, ..-2])
        + &of.slice(s![1..-1, 2..])
        - &of.slice(s![1..-1, 1..-1]) * 4.0;
    out.slice_mut(s![1..-1, 1..-1]).assign(&inside);
    out
}

/// Takes `steps` steps.
pub fn run(steps: usize) {
    let mut a = Array2::<f32>::ones((SIDE, SIDE));
    let mut b = Array2::<f32>::zeros((SIDE, SIDE));
    b.slice_mut(s![240..272, 240..272]).fill(0.5);
    for _ in 0..steps {
        let reaction = &a * &b * &b;
        let more_a = laplace(&a) * SPREAD[0] - &reaction + (1.0 - &a) * FEED;
        let more_b = laplace(&b) * SPREAD[1] + &reaction - &b * (KILL + FEED);
        a = &a + &more_a;
        b = &b + &more_b;
    }
    black_box((a, b));
}
