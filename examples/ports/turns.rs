//! Two ways to run one program: frame by frame in turns, with equal results.

use crate::gpu::Failure;
use std::time::{Duration, Instant};

/// Runs a frame. Returns what it shows.
pub(crate) type Way<F> = Box<dyn FnMut(&F) -> Result<Vec<u8>, Failure>>;

/// Medians of the frames behind the first tenth, which fills the pools.
pub(crate) struct Times {
    pub(crate) by_hand: Duration,
    pub(crate) pooled: Duration,
}

/// Runs frames in both ways, of which each goes first in every second frame. `expected` is what a frame must show,
/// where the CPU knows it. With `compares` false the device computes nothing.
pub(crate) fn run<F>(
    [mut by_hand, mut pooled]: [Way<F>; 2],
    frames: u32,
    frame: impl Fn(u32) -> F,
    expected: impl Fn(&F) -> Option<&[u8]>,
    compares: bool,
) -> Result<Times, Failure> {
    let (mut times, mut some) = ([Vec::new(), Vec::new()], false);
    for number in 0..frames {
        let (frame, mut shown) = (frame(number), [Vec::new(), Vec::new()]);
        for turn in 0..2 {
            let at = usize::from((turn + number).is_multiple_of(2));
            let begin = Instant::now();
            shown[at] = if at == 0 { by_hand(&frame)? } else { pooled(&frame)? };
            if number >= frames / 10 {
                times[at].push(begin.elapsed());
            }
        }
        let [by_hand, pooled] = shown;
        if compares {
            same(&by_hand, &pooled)
                .map_err(|what| format!("frame {number}, {what} with a pool"))?;
            let expected = expected(&frame).unwrap_or(&by_hand);
            same(&by_hand, expected).map_err(|what| format!("frame {number}, {what} by hand"))?;
        }
        some |= by_hand.iter().any(|byte| *byte != by_hand[0]);
    }
    if compares && !some {
        return Err("nothing was computed".into());
    }
    let [by_hand, pooled] = times.map(median);
    Ok(Times { by_hand, pooled })
}

fn same(one: &[u8], other: &[u8]) -> Result<(), String> {
    match one.iter().zip(other).position(|(a, b)| a != b) {
        None if one.len() == other.len() => Ok(()),
        None => Err(format!("{} bytes: {} were expected", other.len(), one.len())),
        Some(at) => Err(format!("byte {at}: {} where {} was expected", other[at], one[at])),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Lines of code between the marks in a source: without comments, empty lines, and imports.
pub(crate) fn lines(source: &str) -> usize {
    let marked = source.lines().map(str::trim).skip_while(|line| *line != "// lines: begin");
    let code = marked.take_while(|line| *line != "// lines: end");
    code.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}
