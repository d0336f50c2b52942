//! Kinds of memory that can be measured.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Host memory.
    Host,
    /// The simulated device.
    Sim,
    /// VRAM by CUDA.
    Cuda,
    /// wgpu buffers on the default adapter.
    Wgpu,
}

impl Backend {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The kinds of real memory that this program was built with.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let all = [
            (Self::Host, true),
            (Self::Cuda, cfg!(feature = "cuda")),
            (Self::Wgpu, cfg!(feature = "wgpu")),
        ];
        all.into_iter().filter(|(_, built_in)| *built_in).map(|(backend, _)| backend).collect()
    }
}
