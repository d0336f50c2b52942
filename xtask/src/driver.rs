//! Device drivers: checks whether this machine has their libraries.
#![expect(unsafe_code, reason = "only loading a library shows that it can be loaded")]

use libloading::Library;
use std::process::Command;

/// The driver of a device.
pub(crate) struct Driver {
    /// Backend that needs the driver; also the name of the feature of `pool-bench`.
    pub(crate) backend: &'static str,
    /// Names by which the library is loaded.
    libraries: &'static [&'static str],
    /// Advice if the library is missing.
    pub(crate) cure: &'static str,
}

pub(crate) const ALL: [Driver; 2] = [
    Driver {
        backend: "cuda",
        libraries: &["libcuda.so", "libcuda.so.1", "nvcuda.dll"],
        cure: "a machine with an NVIDIA driver",
    },
    Driver {
        backend: "wgpu",
        libraries: &["libvulkan.so.1", "libvulkan.so", "vulkan-1.dll"],
        cure: "a Vulkan driver, such as `apt-get install mesa-vulkan-drivers libvulkan1`",
    },
];

impl Driver {
    pub(crate) fn is_here(&self) -> bool {
        self.libraries.iter().any(|name| {
            // SAFETY: the initialisers of a driver's library are harmless. Every program that uses
            // the device trusts the library under this name.
            unsafe { Library::new(*name) }.is_ok()
        })
    }

    /// Describes which libraries could not be loaded.
    pub(crate) fn absence(&self) -> String {
        format!("none of {} can be loaded", self.libraries.join(", "))
    }
}

/// Sets a runtime folder for Mesa if the system has set none; else Mesa complains on stderr.
pub(crate) fn environment(command: &mut Command) {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    }
}
