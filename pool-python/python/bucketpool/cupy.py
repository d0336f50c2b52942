"""CuPy's arrays in the process's one pool of each device, which PyTorch and RMM may share.

CuPy names no stream when it frees, and tells of no uses: an array goes back behind the work of the stream
that was current at its allocation. A stream that uses it beside that one is told by `record_stream`, as
CuPy's own pool would need it too. CuPy's wheel wants a GPU, so its programs have not run with this module;
its calls were tried with a stand-in for CuPy.
"""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

from ._library import OutOfMemory, library
from .memory import _stream_of

__all__ = ["enable", "record_stream"]


class _Owner:
    """A block that CuPy has. It is freed with the last array that uses it."""

    __slots__ = ("_free", "_pool", "data_ptr")

    def __init__(self, pool: int, data_ptr: int) -> None:
        # Not looked up later: at the end of the process modules are gone before arrays are.
        self._free = library().c.bp_free_here
        self._pool, self.data_ptr = pool, data_ptr

    def __del__(self) -> None:
        self._free(self._pool, self.data_ptr)


def enable() -> None:
    """Has CuPy allocate from now on. What it has already stays where it is."""
    import cupy

    def allocate(bytes: int) -> Any:
        device = cupy.cuda.runtime.getDevice()
        memory = cupy.cuda.memory
        if bytes == 0:
            return memory.MemoryPointer(memory.UnownedMemory(0, 0, None, device), 0)
        ours, at = library(), c_void_p()
        pool = ours.pool_of_device(None, device)
        stream = cupy.cuda.get_current_stream().ptr
        try:
            ours.call("bp_alloc", pool, bytes, 0, stream, byref(at))
        except OutOfMemory as refused:
            error = getattr(memory, "OutOfMemoryError", None)
            raise (_as_cupys(error, bytes) if error else refused) from refused
        owner = _Owner(pool, at.value or 0)
        return memory.MemoryPointer(memory.UnownedMemory(owner.data_ptr, bytes, owner, device), 0)

    cupy.cuda.set_allocator(allocate)


def _as_cupys(error: Any, bytes: int) -> Any:
    """Returns CuPy's own error: it takes the size and the total, and is a MemoryError."""
    return error(bytes, 0, 0)


def record_stream(array: Any, stream: Any) -> None:
    """Says that a stream, which the caller has ordered, uses an array until its memory is freed."""
    pointer = array.data
    if pointer.ptr:
        owner = getattr(pointer.mem, "_owner", None)
        if not isinstance(owner, _Owner):
            raise ValueError("an array that is not in bucketpool; expected one made after enable()")
        library().call("bp_record", owner._pool, owner.data_ptr, _stream_of(stream))
