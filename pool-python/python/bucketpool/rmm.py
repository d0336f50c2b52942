"""RMM's memory in Python, from the process's one pool of each device, which PyTorch and CuPy may share.

It goes through RMM's callbacks, at the price of a call of Python for each block; `bucketpool.hpp` in the
package's folder has a resource for C++. RMM's wheel wants a GPU, so its programs have not run with this
module; its calls were tried with a stand-in for RMM.
"""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

from ._library import library

__all__ = ["enable", "resource"]


def resource(device: int = 0) -> Any:
    """Returns a resource of RMM over the one pool of a device."""
    import rmm

    ours = library()
    pool = ours.pool_of_device(None, device)
    free = ours.c.bp_free

    def handle(stream: Any) -> int:
        # RMM's Stream tells its handle by `__cuda_stream__`, a pair of a version and a handle.
        told = getattr(stream, "__cuda_stream__", None)
        return int(told()[1]) if told else int(getattr(stream, "ptr", stream) or 0)

    def allocate(bytes: int, stream: Any) -> int:
        at = c_void_p()
        ours.call("bp_alloc", pool, bytes, 0, handle(stream), byref(at))
        return at.value or 0

    def deallocate(at: int, bytes: int, stream: Any) -> None:
        free(pool, at, handle(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def enable(device: int = 0) -> Any:
    """Makes `resource(device)` RMM's current resource of the device. Returns it."""
    import rmm

    ours = resource(device)
    rmm.mr.set_per_device_resource(device, ours)
    return ours
