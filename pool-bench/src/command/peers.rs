//! `bench --peers`: beside other allocators, beside VRAM's other ways, beside fresh wgpu buffers.

use super::Bench;
use crate::backend::Backend;
use crate::input::BadInput;
use crate::results::Results;

/// A bar that moves while a case takes long.
#[cfg(any(feature = "cuda", feature = "peers", feature = "wgpu"))]
fn ticking(steps: u64) -> indicatif::ProgressBar {
    let bar = crate::results::progress(steps, "");
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

impl Bench {
    pub(super) fn against_peers(&self, results: &mut Results) -> Result<(), BadInput> {
        match self.backend.as_slice() {
            [] if self.peer.is_empty() => self.beside_the_tcache(results),
            [Backend::Cuda] => self.beside_our_vram(results),
            [Backend::Wgpu] if self.peer.is_empty() => self.beside_our_buffers(results),
            _ => Err(BadInput::new(
                "`--peers` with these backends or programs",
                "`--peers` alone, `--backend wgpu --peers`, or `--backend cuda --peers` with any \
                 number of `--peer NAME=COMMAND`",
            )),
        }
    }

    #[cfg(feature = "cuda")]
    fn beside_our_vram(&self, results: &mut Results) -> Result<(), BadInput> {
        if let Some((why, cure)) = Backend::Cuda.absence() {
            return Err(BadInput::new(format!("backend `cuda`: {why}"), cure));
        }
        let traces: Result<Vec<_>, _> =
            self.trace_files()?.iter().map(|file| crate::trace::read(file)).collect();
        let bar = ticking(0);
        let tell = |case: &str| bar.set_message(case.to_owned());
        // A run that is cut off has told what it knew.
        let came = |rows: &[crate::beside::Row]| {
            for line in rows.iter().filter_map(|row| serde_json::to_string(row).ok()) {
                eprintln!("{line}");
            }
        };
        results.beside = crate::gpu::run(&self.peer, traces?, self.smoke, tell, came)?;
        bar.finish_and_clear();
        Ok(())
    }

    #[cfg(feature = "wgpu")]
    fn beside_our_buffers(&self, results: &mut Results) -> Result<(), BadInput> {
        if let Some((why, cure)) = Backend::Wgpu.absence() {
            return Err(BadInput::new(format!("backend `wgpu`: {why}"), cure));
        }
        let bar = ticking(0);
        let rows = crate::frames::run(self.smoke, |case| bar.set_message(case.to_owned()));
        bar.finish_and_clear();
        let failed =
            |why: String| BadInput::new(format!("backend `wgpu`: {why}"), "a run without failures");
        results.beside = rows.map_err(failed)?;
        Ok(())
    }

    #[cfg(not(feature = "wgpu"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_our_buffers(&self, _: &mut Results) -> Result<(), BadInput> {
        Err(BadInput::new("backend `wgpu`: it was not built in", "a build with that feature"))
    }

    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_our_vram(&self, _: &mut Results) -> Result<(), BadInput> {
        Err(BadInput::new("backend `cuda`: it was not built in", "a build with that feature"))
    }

    #[cfg(feature = "peers")]
    fn beside_the_tcache(&self, results: &mut Results) -> Result<(), BadInput> {
        let bar = ticking(crate::peers::steps());
        results.peers = crate::peers::run(self.smoke, |case| {
            bar.set_message(case.to_owned());
            bar.inc(1);
        })?;
        bar.finish_and_clear();
        Ok(())
    }

    #[cfg(not(feature = "peers"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_the_tcache(&self, _: &mut Results) -> Result<(), BadInput> {
        Err(BadInput::new("`--peers`: they are not built in", "`cargo xtask bench --peers`"))
    }
}
