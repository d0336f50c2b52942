"""Arrays in pools of CUDA memory, page-locked memory and host memory, for other libraries to use.

An array has no operations of its own: PyTorch, CuPy, NumPy and others take it without a copy, through
DLPack 1.1 (``__dlpack__``), ``__cuda_array_interface__`` version 3 or ``__array_interface__``.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from ctypes import byref, c_void_p, py_object
from typing import Any

from ._library import Element, Error, library, settings_of

__all__ = ["Array", "MemoryPool", "from_dlpack"]

CPU, CUDA, CUDA_HOST = 1, 2, 3
# The letters of `__array_interface__` and the codes of DLPack.
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DTYPES = {
    **{f"int{bits}": ("i", bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": ("u", bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": ("f", bits) for bits in (16, 32, 64)},
    **{f"complex{bits}": ("c", bits) for bits in (64, 128)},
    "bool": ("b", 8),
}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = py_object
_new_capsule.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = c_void_p
_pointer_of.argtypes = [py_object, ctypes.c_char_p]
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = [py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [py_object, ctypes.c_char_p]

_OLD, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED = {_OLD: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("element", Element),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def _drop(capsule: int) -> None:
    """Frees a tensor that nobody has taken. Called by Python with the GIL."""
    holder = ctypes.cast(capsule, py_object)
    for name, kind in ((_OLD, _Managed), (_VERSIONED, _Versioned)):
        if _is_capsule(holder, name):
            at = _pointer_of(holder, name)
            kind.from_address(at).deleter(at)


_drop_capsule = ctypes.CFUNCTYPE(None, c_void_p)(_drop)


def _stream_of(stream: Any) -> int:
    """Returns the handle of a stream: of an int, or of an object of PyTorch, CuPy or Numba."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        if stream < 0:
            raise ValueError(f"stream {stream}; expected a handle, or None")
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        if (handle := getattr(stream, name, None)) is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise TypeError(
        f"stream {stream!r}; expected None, a handle, or a stream of PyTorch, CuPy or Numba"
    )


def _axes(shape: Any) -> tuple[int, ...]:
    """Returns the axes of a shape: a number, of NumPy too, or several."""
    if hasattr(shape, "__index__"):
        return (operator.index(shape),)
    return tuple(operator.index(axis) for axis in shape)


class MemoryPool:
    """A pool whose arrays other libraries use.

    memory: "cuda", "cuda-vmm", "cuda-async", "pinned" or "host".
    device: the number of the device, for all but "host".
    shared: whether it is the process's one pool of that device, which the plugs for PyTorch, CuPy and
    RMM use too. It takes no settings then.
    policy, limit: as `bucketpool.torch.enable` takes them; or ``settings``, TOML with the keys of
    docs/configuration.md.
    """

    def __init__(
        self,
        memory: str = "cuda",
        device: int = 0,
        *,
        shared: bool = False,
        policy: str | None = None,
        limit: int | str | None = None,
        settings: str | None = None,
    ) -> None:
        self._library = library()
        self.memory, self.device = memory, device
        pool = c_void_p()
        if shared:
            if not policy is limit is settings is None:
                raise TypeError("settings of a shared pool; expected none: the process has one")
            device_memory = None if memory == "cuda" else memory
            pool.value = self._library.pool_of_device(device_memory, device)
        else:
            toml = settings_of(policy, limit, settings)
            self._library.call("bp_pool_new", toml, memory.encode(), device, byref(pool))
        self._pool = pool.value

    def __del__(self) -> None:
        if pool := getattr(self, "_pool", None):
            self._library.c.bp_pool_drop(pool)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", stream: Any = None) -> Array:
        """Returns an array whose contents may be anything, for work on a stream.

        stream: a handle, or a stream of PyTorch, CuPy or Numba; None for the legacy default stream.
        """
        return Array(self, shape, dtype, stream)

    def trim(self, bytes: int | None = None) -> int:
        """Gives cached memory back: at least so many bytes, or all. Returns the bytes that went."""
        if bytes is None:
            return self._library.bytes_of("bp_clear", self._pool)
        return self._library.bytes_of("bp_trim", self._pool, bytes)

    def set_limit(self, bytes: int) -> int:
        """Sets the limit on reserved bytes. Returns the cached bytes that went for it."""
        return self._library.bytes_of("bp_set_limit", self._pool, bytes)

    def stats(self) -> dict[str, Any]:
        """Returns the figures of the pool (docs/statistics.md)."""
        figures: dict[str, Any] = self._library.json_of("bp_stats_json", self._pool or 0)["pool"]
        return figures

    def memory_map(self) -> dict[str, Any]:
        """Returns where the memory is: segments and their ranges."""
        found: dict[str, Any] = self._library.json_of("bp_map_json", self._pool or 0)
        return found

    def report(self, path: str) -> None:
        """Writes the figures and a picture of the memory to a file."""
        self._library.call("bp_report", self._pool, str(path).encode())


class Array:
    """Memory of a `MemoryPool` with a shape. ``data_ptr`` is its address, 0 without elements.

    It goes to the pool when it and all that other libraries made of it are gone: behind the work of
    its stream, and of each stream that took it through DLPack or that `record_stream` names.
    """

    def __init__(
        self, pool: MemoryPool, shape: int | Sequence[int], dtype: Any, stream: Any
    ) -> None:
        name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
        name = name.removeprefix("torch.")
        if name not in _DTYPES:
            raise TypeError(f"dtype {name}; expected one of {', '.join(_DTYPES)}")
        self.shape = _axes(shape)
        if any(axis < 0 for axis in self.shape):
            raise ValueError(f"shape {self.shape}; expected no negative axis")
        # The object of a stream lives as long as the array: its end would end the stream.
        self._stream, self.stream = stream, _stream_of(stream)
        self.dtype, self.pool = name, pool
        self._kind, self._bits = _DTYPES[name]
        self.nbytes = math.prod(self.shape) * (self._bits // 8)
        self._library = pool._library
        at = c_void_p()
        self._library.call("bp_alloc", pool._pool, self.nbytes, 0, self.stream, byref(at))
        self.data_ptr = at.value or 0
        if self.data_ptr and pool.memory != "host":
            # Its stream uses it until its end: others are ordered behind all that the stream has.
            self._library.call("bp_use", pool._pool, self.data_ptr, self.stream, 0)

    def __del__(self) -> None:
        if at := getattr(self, "data_ptr", 0):
            self._library.c.bp_free_here(self.pool._pool, at)

    def record_stream(self, stream: Any) -> None:
        """Says that a stream, which the caller has ordered, uses the array until its end."""
        if self.data_ptr:
            self._library.call("bp_record", self.pool._pool, self.data_ptr, _stream_of(stream))

    def use_on(self, stream: Any, *, reads: bool = False) -> None:
        """Orders a stream behind the earlier uses, and says that it uses the array until its end."""
        if self.data_ptr:
            at = (self.pool._pool, self.data_ptr)
            self._library.call("bp_use", *at, _stream_of(stream), int(reads))

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.pool.memory == "host":
            return (CPU, 0)
        return (CUDA_HOST, 0) if self.pool.memory == "pinned" else (CUDA, self.pool.device)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Gives the array to another library, and orders its stream behind the array's.

        stream: 1 and None are the legacy default stream, 2 that of the thread, -1 orders nothing; 0 is
        forbidden. For host and page-locked memory None or -1.
        """
        device = self.__dlpack_device__()
        if dl_device not in (None, device):
            raise BufferError(f"dl_device {dl_device}; expected {device}, where the array is")
        if copy:
            raise BufferError("copy=True; expected None or False: this array gives its own memory")
        if device[0] != CUDA and stream not in (None, -1):
            raise ValueError(f"stream {stream} for memory of the host; expected None")
        if stream == 0 and not isinstance(stream, bool):
            raise ValueError("stream 0 means two things; expected 1 (legacy) or 2 (of the thread)")
        if device[0] == CUDA and stream != -1:
            self.use_on(1 if stream is None else stream)
        is_new = max_version is not None and max_version[0] >= 1
        axes = len(self.shape)
        tensor = c_void_p()
        self._library.call(
            "bp_dlpack",
            self.pool._pool,
            self.data_ptr or None,
            axes,
            (ctypes.c_int64 * max(axes, 1))(*self.shape),
            None,
            Element(_KINDS[self._kind], self._bits, 1),
            int(is_new),
            byref(tensor),
        )
        name = _VERSIONED if is_new else _OLD
        return _new_capsule(tensor, name, ctypes.cast(_drop_capsule, c_void_p))

    @property
    def _typestr(self) -> str:
        size = self._bits // 8
        return f"{'|' if size == 1 else '<'}{self._kind}{size}"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.__dlpack_device__()[0] != CUDA:
            raise AttributeError("__cuda_array_interface__ of memory that is not a device's")
        return {
            "shape": self.shape,
            "typestr": self._typestr,
            "data": (self.data_ptr, False),
            "version": 3,
            "strides": None,
            # The consumer orders its stream behind this one.
            "stream": self.stream or 1,
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.__dlpack_device__()[0] == CUDA:
            raise AttributeError("__array_interface__ of memory of a device")
        # NumPy takes no null pointer for an array without elements.
        at = self.data_ptr or 1
        return {
            "shape": self.shape,
            "typestr": self._typestr,
            "data": (at, False),
            "version": 3,
        }

    def __repr__(self) -> str:
        where = f"{self.pool.memory}:{self.pool.device}" if self.pool.memory != "host" else "host"
        return f"<Array {self.dtype}{list(self.shape)} at {self.data_ptr:#x}, {where}>"


class Imported:
    """Memory of another library, taken by `from_dlpack`. The other library frees it when this is gone."""

    def __init__(self, capsule: Any) -> None:
        managed: _Managed | _Versioned
        if _is_capsule(capsule, _VERSIONED):
            at = _pointer_of(capsule, _VERSIONED)
            managed = versioned = _Versioned.from_address(at)
            if versioned.version[0] > 1:
                raise BufferError(f"DLPack {versioned.version[0]}; expected version 1")
            taken = _USED[_VERSIONED]
        elif _is_capsule(capsule, _OLD):
            at = _pointer_of(capsule, _OLD)
            managed, taken = _Managed.from_address(at), _USED[_OLD]
        else:
            raise BufferError("a capsule that is no DLPack tensor, or was taken already")
        tensor = managed.tensor
        self._at, self._managed = at, managed
        _rename(capsule, taken)  # a name that lives as long as the capsule
        self.shape = tuple(tensor.shape[: tensor.axes])
        self.strides = tuple(tensor.strides[: tensor.axes]) if tensor.strides else None
        self.device = (tensor.device_type, tensor.device_id)
        self.data_ptr = (tensor.data or 0) + tensor.byte_offset
        self.element = (tensor.element.code, tensor.element.bits, tensor.element.lanes)

    def __del__(self) -> None:
        if (managed := getattr(self, "_managed", None)) and managed.deleter:
            managed.deleter(self._at)


def from_dlpack(array: Any, stream: Any = None) -> Imported:
    """Takes another library's array without a copy.

    stream: the stream on which it will be used; the other library orders it behind its own work.
    """
    device = array.__dlpack_device__()
    named: dict[str, Any] = {"max_version": (1, 1)}
    if device[0] == CUDA:
        named["stream"] = _stream_of(stream) or 1
    try:
        capsule = array.__dlpack__(**named)
    except TypeError:  # a library from before version 1
        named.pop("max_version")
        capsule = array.__dlpack__(**named)
    return Imported(capsule)


__all__ += ["Error", "Imported"]
