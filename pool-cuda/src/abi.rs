//! Structures that the driver reads, in its own layout. cudarc's bindings of them differ from one
//! version of CUDA to the next in names, not in bytes; these are the bytes.

use cudarc::driver::sys;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: memory that stays where it is, the only type there is.
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: u32 = 3;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FILE_HANDLE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC_HANDLE: u32 = 8;

/// `CUmemLocation`: a device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeviceLocation {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Properties {
    allocation: u32,
    handles: u32,
    location: DeviceLocation,
    windows: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemPoolProps`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PoolProperties {
    allocation: u32,
    handles: u32,
    location: DeviceLocation,
    windows: usize,
    rest: [u64; 8],
}

/// `CUmemAccessDesc`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Access {
    location: DeviceLocation,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
    assert!(size_of::<PoolProperties>() == size_of::<sys::CUmemPoolProps>());
    assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());
};

impl DeviceLocation {
    pub(crate) fn of(ordinal: usize) -> Self {
        Self { kind: DEVICE, id: i32::try_from(ordinal).unwrap_or(-1) }
    }
}

impl Properties {
    pub(crate) fn on(location: DeviceLocation) -> Self {
        Self {
            allocation: PINNED,
            handles: 0,
            location,
            windows: 0,
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// Lets the memory be exported as a kind of handle too.
    pub(crate) fn export_as(&mut self, kind: u32) {
        self.handles |= kind;
    }

    /// Lets network cards reach the memory.
    pub(crate) fn allow_rdma(&mut self) {
        self.rdma = 1;
    }

    pub(crate) fn as_ptr(&self) -> *const sys::CUmemAllocationProp {
        std::ptr::from_ref(self).cast()
    }
}

impl PoolProperties {
    pub(crate) fn on(location: DeviceLocation) -> Self {
        Self { allocation: PINNED, handles: 0, location, windows: 0, rest: [0; 8] }
    }

    pub(crate) fn as_ptr(&self) -> *const sys::CUmemPoolProps {
        std::ptr::from_ref(self).cast()
    }
}

impl Access {
    pub(crate) fn of(location: DeviceLocation) -> Self {
        Self { location, flags: READ_AND_WRITE }
    }

    pub(crate) fn as_ptr(&self) -> *const sys::CUmemAccessDesc {
        std::ptr::from_ref(self).cast()
    }

    /// Returns the address of the first of several.
    pub(crate) fn first(several: &[Self]) -> *const sys::CUmemAccessDesc {
        several.as_ptr().cast()
    }
}
