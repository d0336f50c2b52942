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

    /// The kinds of memory that this program was built with.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let all = [
            (Self::Host, true),
            (Self::Sim, true),
            (Self::Cuda, cfg!(feature = "cuda")),
            (Self::Wgpu, cfg!(feature = "wgpu")),
        ];
        all.into_iter().filter(|(_, built_in)| *built_in).map(|(backend, _)| backend).collect()
    }

    /// Why this kind of memory cannot be had here, and what would give it; `None` if it can.
    #[must_use]
    pub fn absence(self) -> Option<(String, &'static str)> {
        match self {
            Self::Host | Self::Sim => None,
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                let error = bucketpool::cuda::CudaAllocator::new(0).err()?;
                Some((error.to_string(), "a machine with an NVIDIA GPU and its driver"))
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu => {
                let error = bucketpool::wgpu::WgpuAllocator::on_default_adapter().err()?;
                Some((error.to_string(), "a Vulkan driver, such as Debian's mesa-vulkan-drivers"))
            }
            #[cfg(not(all(feature = "cuda", feature = "wgpu")))]
            _ => Some(("not built in".to_owned(), "a build with the feature of its name")),
        }
    }
}
