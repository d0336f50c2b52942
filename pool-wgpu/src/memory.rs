//! How much memory a device has, where its driver tells.

use wgpu::Device;

/// Bytes of the largest heap of a Vulkan device's own memory; `None` where another interface is
/// used, which does not tell.
#[cfg(not(any(target_family = "wasm", target_vendor = "apple")))]
#[expect(unsafe_code, reason = "the driver is asked through wgpu's own handles")]
pub(crate) fn total_bytes(device: &Device) -> Option<u64> {
    // SAFETY: nothing is destroyed through the handle, and it goes before the device does.
    let vulkan = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, which lives as long as the handle.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    let heaps = &memory.memory_heaps[..memory.memory_heap_count as usize];
    // Bit 0 of the flags is VK_MEMORY_HEAP_DEVICE_LOCAL_BIT (Vulkan specification, VkMemoryHeap).
    heaps.iter().filter(|heap| heap.flags.as_raw() & 1 != 0).map(|heap| heap.size).max()
}

/// Browsers do not tell, and wgpu has no Vulkan on Apple's devices.
#[cfg(any(target_family = "wasm", target_vendor = "apple"))]
pub(crate) fn total_bytes(_device: &Device) -> Option<u64> {
    None
}
