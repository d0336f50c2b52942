"""NumPy arrays in pools, through NumPy's data handler (NEP 49).

Arrays from 64 KiB are in the pool; smaller ones are malloc's. An array may outlive the pool, the
``with`` block and ``uninstall()``: it keeps the pool's memory until it is freed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._bucketpool import Pool, set_handler

__all__ = ["install", "installed", "pooled", "uninstall"]

_lock = threading.Lock()
_installed: Pool | None = None
_start = threading.Thread.start


def install(
    pool: Pool | None = None, *, limit: int | str | None = None, decay: float | None = 1.0
) -> Pool:
    """Has NumPy allocate its arrays from a pool, in this thread and in threads started from now on.

    ``pool`` is the pool to use; otherwise a new one is made with ``limit`` and ``decay`` (see
    ``bucketpool.Pool``). A second call replaces the pool of the first. Returns the pool.

    NumPy keeps its handler in a context variable, and a new thread starts with an empty context. So
    ``threading.Thread.start`` is wrapped: a thread sets the handler before it runs. Threads that
    run already, and those that are not ``threading.Thread``, keep NumPy's own malloc.

    Raises ``ValueError`` for a limit that is no size, and ``TypeError`` for both a pool and limits.
    """
    global _installed
    if pool is not None and (limit is not None or decay != 1.0):
        raise TypeError("a pool and limits for another; expected one of them")
    if pool is None:
        pool = Pool(limit, decay)
    set_handler(pool.handler())
    with _lock:
        _installed = pool
        threading.Thread.start = _start_pooled  # type: ignore[method-assign,assignment]
    return pool


def uninstall() -> None:
    """Has NumPy use its own malloc for new arrays, in this thread and in threads started from now
    on. Nothing happens if no pool is installed."""
    global _installed
    with _lock:
        if _installed is None:
            return
        _installed = None
        threading.Thread.start = _start  # type: ignore[method-assign]
    set_handler(None)


def installed() -> Pool | None:
    """Returns the pool of ``install()``, or None."""
    return _installed


@contextmanager
def pooled(
    pool: Pool | None = None, *, limit: int | str | None = None, decay: float | None = 1.0
) -> Iterator[Pool]:
    """Has NumPy allocate the arrays that are made in a ``with`` block from a pool.

    The arguments are those of ``install()``. Blocks nest; each thread and each task of asyncio has
    its own. It yields the pool.

    >>> import bucketpool.numpy, numpy
    >>> with bucketpool.numpy.pooled(limit="512M") as pool:
    ...     a = numpy.ones(1 << 20)
    ...     b = (a + a) * a
    >>> pool.stats()["allocations"]
    2
    """
    if pool is not None and (limit is not None or decay != 1.0):
        raise TypeError("a pool and limits for another; expected one of them")
    if pool is None:
        pool = Pool(limit, decay)
    before = set_handler(pool.handler())
    try:
        yield pool
    finally:
        set_handler(before)


def _start_pooled(thread: threading.Thread, *arguments: Any, **named: Any) -> None:
    """Starts a thread that sets the handler before it runs."""
    run, pool = thread.run, _installed

    def run_pooled() -> None:
        if pool is not None:
            set_handler(pool.handler())
        run()

    thread.run = run_pooled  # type: ignore[method-assign]
    _start(thread, *arguments, **named)
