//! An engine that runs recordings beside its own pool: the example `ports`, frame by frame.

#[path = "../../../examples/ports/recordings/by_hand.rs"]
mod by_hand;
#[path = "../../../examples/ports/recordings/pooled.rs"]
mod pooled;
#[path = "../../../examples/ports/recordings/recording.rs"]
mod recording;

use super::device::{Contender, Failed, FrameBench, contest};
use crate::rounds::Row;
use by_hand::ByHand;
use pooled::Pooled;
use recording::{Failure, Shaders, TwoRecordings, frame};

/// Frames of different sizes, after which the first comes again.
const FRAMES: u32 = 64;

impl FrameBench {
    pub(super) fn recordings(&self) -> Result<Vec<Row>, Failed> {
        let (device, queue) = self.gpu();
        let (frames, shaders) =
            (&(0..FRAMES).map(frame).collect::<Vec<_>>(), &Shaders::new(device));
        let mut by_hand = ByHand::new(device.clone(), queue.clone());
        let mut pooled = Pooled::new(&self.device);
        let (mut by_hand_next, mut pooled_next) = (frames.iter().cycle(), frames.iter().cycle());
        let contenders: Vec<Contender<'_>> = vec![
            (
                "its own pool",
                Box::new(move || {
                    let Some(frame) = by_hand_next.next() else { return Ok(()) };
                    for recording in &frame.recordings {
                        by_hand.run(shaders, recording);
                    }
                    same(frame, by_hand.download(&frame.out))
                }),
            ),
            (
                "pooled",
                Box::new(move || {
                    let Some(frame) = pooled_next.next() else { return Ok(()) };
                    for recording in &frame.recordings {
                        pooled.run(shaders, recording).map_err(|error| error.to_string())?;
                    }
                    same(frame, pooled.download(&frame.out))
                }),
            ),
        ];
        contest("two recordings of four dispatches, and a download", self, contenders)
    }
}

fn same(frame: &TwoRecordings, shown: Result<Vec<u8>, Failure>) -> Result<(), Failed> {
    match shown.map_err(|error| error.to_string())? == frame.expected {
        true => Ok(()),
        false => Err("a recording computes something else".into()),
    }
}
