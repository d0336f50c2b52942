//! The drivers of devices: whether this machine has their libraries.
#![expect(unsafe_code, reason = "only loading a library shows that it can be loaded")]

use libloading::Library;
use std::process::Command;

/// A device's driver.
pub(crate) struct Driver {
    /// The backend that needs it; also the feature of `pool-bench`.
    pub(crate) backend: &'static str,
    /// The names by which its library is loaded.
    libraries: &'static [&'static str],
    /// What to do where it is missing.
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
        cure: "a Vulkan driver, such as Debian's mesa-vulkan-drivers and libvulkan1",
    },
];

impl Driver {
    pub(crate) fn is_here(&self) -> bool {
        self.libraries.iter().any(|name| {
            // SAFETY: the initialisers of a driver's library are harmless; whoever puts something
            // else under its name is trusted by every program that uses the device.
            unsafe { Library::new(*name) }.is_ok()
        })
    }

    /// What was looked for.
    pub(crate) fn absence(&self) -> String {
        format!("none of {} can be loaded", self.libraries.join(", "))
    }
}

/// Gives Mesa a folder, where the system has set none; it complains on stderr otherwise.
pub(crate) fn environment(command: &mut Command) {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    }
}
