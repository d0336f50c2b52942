"""NumPy arrays in pools, through NumPy's data handler (NEP 49).

Arrays from 64 KiB are in the pool; smaller ones are malloc's. An array may outlive the pool, the
``with`` block and ``uninstall()``: it keeps the pool's memory until it is freed.

NumPy keeps its handler in a context variable, so a pool is that of a context: of a thread, or of a
task of asyncio. Do not ``yield`` inside a ``with pooled()`` block of a generator: the block would
stay open in the code that uses the generator.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._bucketpool import Pool, set_handler

__all__ = ["install", "installed", "pooled", "uninstall"]


def __dir__() -> list[str]:
    return __all__


_lock = threading.Lock()
_installed: Pool | None = None
_starts_are_wrapped = False


def install(
    pool: Pool | None = None,
    *,
    limit: int | str | None = None,
    decay: float | None = 1.0,
    background: bool = True,
) -> Pool:
    """Has NumPy allocate its arrays from a pool, in this context and in threads started from now on.

    ``pool`` is the pool to use; otherwise a new one is made (see ``bucketpool.Pool``). A second call
    replaces the pool of the first. Returns the pool.

    Call it where the program starts. A task of asyncio that calls it changes its own context only;
    so does a cell of a notebook, if the notebook gives each cell a context. ``threading.Thread.start``
    is wrapped, because a new thread starts with an empty context. Threads that run already, those
    that are not ``threading.Thread``, and processes that are not forked keep NumPy's own malloc.

    Raises ``ValueError`` for a limit that is no size, ``TypeError`` for both a pool and limits, and
    ``ImportError`` for a NumPy before 1.22.
    """
    global _installed
    pool = _chosen(pool, limit, decay, background)
    set_handler(pool._handler())
    with _lock:
        _installed = pool
        _wrap_starts()
    return pool


def uninstall() -> None:
    """Has NumPy use its own malloc for new arrays, in this context and in threads started from now
    on. Nothing happens if no pool is installed."""
    global _installed
    with _lock:
        if _installed is None:
            return
        _installed = None
    set_handler(None)


def installed() -> Pool | None:
    """Returns the pool of ``install()``, or None."""
    return _installed


@contextmanager
def pooled(
    pool: Pool | None = None,
    *,
    limit: int | str | None = None,
    decay: float | None = 1.0,
    background: bool = True,
) -> Iterator[Pool]:
    """Has NumPy allocate the arrays that are made in a ``with`` block from a pool.

    The arguments are those of ``install()``. Blocks nest. It yields the pool. In a loop, make the
    pool once and pass it on, so that each block finds the memory of the last one.

    >>> import bucketpool.numpy, numpy
    >>> with bucketpool.numpy.pooled(limit="512M") as pool:
    ...     a = numpy.ones(1 << 20)
    ...     b = (a + a) * a
    >>> pool.stats()["allocations"]
    2
    """
    pool = _chosen(pool, limit, decay, background)
    ours = pool._handler()
    before = set_handler(ours)
    try:
        yield pool
    finally:
        if set_handler(before) is not ours:
            warnings.warn(
                "the handler was changed inside of a block of pooled(), and is now the one before it",
                RuntimeWarning,
                stacklevel=3,
            )


def _chosen(
    pool: Pool | None, limit: int | str | None, decay: float | None, background: bool
) -> Pool:
    """Returns the pool, or a new one with these limits."""
    if pool is None:
        return Pool(limit, decay, background)
    if (limit, decay, background) != (None, 1.0, True):
        raise TypeError("a pool and limits for another; expected one of them")
    return pool


def _wrap_starts() -> None:
    """Has each thread set the handler of the installed pool before it runs. The wrapper stays, since
    others may wrap it in turn; without a pool it does nothing."""
    global _starts_are_wrapped
    if _starts_are_wrapped:
        return
    _starts_are_wrapped = True
    start = threading.Thread.start

    @functools.wraps(start)
    def start_pooled(thread: threading.Thread, *arguments: Any, **named: Any) -> None:
        pool = _installed
        if pool is None:
            return start(thread, *arguments, **named)
        if hasattr(inspect.getattr_static(type(thread), "run", None), "__set__"):
            name = type(thread).__qualname__
            warnings.warn(
                f"threads of {name} are not pooled: its `run` is a property, expected a method",
                RuntimeWarning,
                stacklevel=2,
            )
            return start(thread, *arguments, **named)
        own = thread.__dict__.get("run")

        def restore() -> None:
            if own is None:
                thread.__dict__.pop("run", None)
            else:
                thread.__dict__["run"] = own

        def run_pooled() -> None:
            # Before the run, so that the thread does not refer to itself.
            restore()
            set_handler(pool._handler())
            thread.run()

        thread.__dict__["run"] = run_pooled
        try:
            return start(thread, *arguments, **named)
        except BaseException:
            restore()
            raise

    threading.Thread.start = start_pooled  # type: ignore[method-assign,assignment]
