"""``libbucketpool_c.so``: its functions, and its errors as exceptions.

The library is loaded when it is first used, and needs no GPU until a pool of one is made.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

__all__ = ["Error", "OutOfMemory", "library", "path"]

# The interface that these declarations are for (`bp_abi`).
ABI = 1
OK, OUT_OF_MEMORY, UNKNOWN, FORKED = 0, 1, 3, 8


class Error(RuntimeError):
    """What the library refuses. ``status`` is its code (``enum bp_status``)."""

    def __init__(self, text: str, status: int, verdict: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.verdict = verdict


class OutOfMemory(Error, MemoryError):
    """No memory, on the device or within a limit. ``verdict`` says why."""


class _Details(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("status", c_int),
        ("driver_code", c_int64),
        ("verdict", c_char_p),
        ("text", c_char_p),
    ]


class Element(ctypes.Structure):
    """``DLDataType``."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


# The arguments of each function that returns a status.
_CALLS: dict[str, list[Any]] = {
    "bp_pool_new": [c_char_p, c_char_p, c_int, POINTER(c_void_p)],
    "bp_pool_of_device": [c_char_p, c_int, POINTER(c_void_p)],
    "bp_pool_if_made": [c_char_p, c_int, POINTER(c_void_p)],
    "bp_set_devices": [c_char_p, c_char_p],
    "bp_pool_drop": [c_void_p],
    "bp_alloc": [c_void_p, c_size_t, c_size_t, c_void_p, POINTER(c_void_p)],
    "bp_free": [c_void_p, c_void_p, c_void_p],
    "bp_free_here": [c_void_p, c_void_p],
    "bp_hold": [c_void_p, c_void_p],
    "bp_record": [c_void_p, c_void_p, c_void_p],
    "bp_use": [c_void_p, c_void_p, c_void_p, c_int],
    "bp_stream_end": [c_void_p, c_void_p],
    "bp_clear": [c_void_p, POINTER(c_uint64)],
    "bp_trim": [c_void_p, c_uint64, POINTER(c_uint64)],
    "bp_make_room": [c_void_p, c_uint64, POINTER(c_uint64)],
    "bp_set_limit": [c_void_p, c_uint64, POINTER(c_uint64)],
    "bp_set_fraction": [c_void_p, c_double, POINTER(c_uint64)],
    "bp_stats_json": [c_void_p, POINTER(c_void_p)],
    "bp_map_json": [c_void_p, POINTER(c_void_p)],
    "bp_report": [c_void_p, c_char_p],
    "bp_reset_peaks": [c_void_p],
    "bp_reset_counts": [c_void_p],
    "bp_dlpack": [
        c_void_p, c_void_p, c_int, POINTER(c_int64), POINTER(c_int64), Element, c_int,
        POINTER(c_void_p),
    ],
}  # fmt: skip


def path() -> Path:
    """Returns the library's file: ``BUCKETPOOL_C``, or that of the package."""
    named = os.environ.get("BUCKETPOOL_C")
    file = Path(named) if named else Path(__file__).parent / "libbucketpool_c.so"
    if not file.is_file():
        raise ImportError(
            f"no file {file}; expected libbucketpool_c.so, which the wheel has on Linux"
        )
    return file


@functools.cache
def library() -> Library:
    """Returns the library, which the first call loads."""
    return Library()


class Library:
    """The functions of ``bucketpool.h`` by their names; a refusal is an ``Error``."""

    def __init__(self) -> None:
        # Global, so that the C++ part of the plug for PyTorch finds the functions.
        try:
            self.c = ctypes.CDLL(str(path()), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ImportError(f"{path()} cannot be loaded: {error}") from error
        if (abi := self.c.bp_abi()) != ABI:
            raise ImportError(f"{path()} has interface {abi}; expected {ABI}, as this package has")
        for name, arguments in _CALLS.items():
            function = getattr(self.c, name)
            function.argtypes, function.restype = arguments, c_int
        self.c.bp_last_error.argtypes = [POINTER(_Details)]
        self.c.bp_text_free.argtypes = [c_void_p]
        self.c.bp_text_free.restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function. Raises what it refuses."""
        if getattr(self.c, name)(*arguments) != OK:
            self.refuse()

    def refuse(self) -> None:
        """Raises the last error of this thread."""
        details = _Details(size=ctypes.sizeof(_Details))
        self.c.bp_last_error(byref(details))
        kind = OutOfMemory if details.status == OUT_OF_MEMORY else Error
        raise kind(details.text.decode(), details.status, details.verdict.decode())

    def address(self, name: str) -> int:
        """Returns the address of a function."""
        at = ctypes.cast(getattr(self.c, name), c_void_p).value
        assert at is not None
        return at

    def bytes_of(self, name: str, *arguments: Any) -> int:
        """Calls a function that tells how many bytes went, and returns them."""
        given = c_uint64()
        self.call(name, *arguments, byref(given))
        return given.value

    def json_of(self, name: str, pool: int) -> Any:
        """Calls a function that tells something as JSON, and returns it."""
        text = c_void_p()
        self.call(name, pool, byref(text))
        try:
            return json.loads(ctypes.string_at(text.value or 0))
        finally:
            self.c.bp_text_free(text)

    def pool_of_device(self, memory: str | None, device: int) -> int:
        """Returns the one pool of a device."""
        pool = c_void_p()
        self.call("bp_pool_of_device", memory.encode() if memory else None, device, byref(pool))
        assert pool.value is not None
        return pool.value

    def pool_if_made(self, device: int) -> int | None:
        """Returns the one pool of a device's memory, if it was made: a question makes no context."""
        pool = c_void_p()
        if self.c.bp_pool_if_made(None, device, byref(pool)) == UNKNOWN:
            return None
        if pool.value is None:
            self.refuse()
        return pool.value


def settings_of(
    policy: str | None, limit: int | str | None, settings: str | None = None
) -> bytes:
    """Returns the TOML of a pool's settings."""
    if settings is not None and (policy is not None or limit is not None):
        raise TypeError("settings beside policy or limit; expected the keys in the settings")
    if settings is not None:
        return settings.encode()
    lines = [f"policy = {json.dumps(policy or 'arena')}"]
    if limit is not None:
        lines.append(f"reserved_limit = {json.dumps(limit)}")
    return "\n".join(lines).encode()
