"""Pools as NumPy's data handler: where arrays are, how long they live, threads, forks, bad input."""

import asyncio
import doctest
import gc
import multiprocessing
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import bucketpool
import bucketpool.numpy
import numpy
import pytest
from numpy._core.multiarray import get_handler_name

LARGE = 1 << 20
OURS, NUMPYS = "bucketpool", "default_allocator"


@pytest.fixture(autouse=True)
def no_pool_is_left():
    yield
    bucketpool.numpy.uninstall()
    assert get_handler_name(numpy.zeros(1)) == NUMPYS


def test_arrays_of_the_block_are_in_the_pool_and_others_are_not():
    before = numpy.ones(LARGE)
    with bucketpool.numpy.pooled() as pool:
        small, large = numpy.ones(10), numpy.ones(LARGE)
        assert get_handler_name(small) == get_handler_name(large) == OURS
        assert pool.stats()["live_bytes"] == large.nbytes
    after = numpy.ones(LARGE)
    assert get_handler_name(before) == get_handler_name(after) == NUMPYS
    assert (large == 1).all()


def test_memory_of_a_freed_array_is_used_again_and_zeroed_on_request():
    pool = bucketpool.Pool()
    pool.trim()  # what an earlier pool left
    with bucketpool.numpy.pooled(pool):
        first = numpy.full(LARGE, 7.0)
        address = first.ctypes.data
        del first
        second = numpy.zeros(LARGE)
        assert second.ctypes.data == address
        assert not second.any()
        stats = pool.stats()
        assert (stats["allocations"], stats["hits"], stats["misses"]) == (2, 1, 1)


def test_blocks_nest_and_each_has_its_pool():
    with bucketpool.numpy.pooled() as outer:
        a = numpy.ones(LARGE)
        with bucketpool.numpy.pooled() as inner:
            b = numpy.ones(LARGE)
            with bucketpool.numpy.pooled(outer):
                c = numpy.ones(LARGE)
        d = numpy.ones(LARGE)
    assert outer.stats()["live_bytes"] == a.nbytes + c.nbytes + d.nbytes
    assert inner.stats()["live_bytes"] == b.nbytes


def test_the_handler_is_back_after_an_exception():
    with pytest.raises(ZeroDivisionError), bucketpool.numpy.pooled():
        1 / 0
    assert get_handler_name(numpy.ones(1)) == NUMPYS


def test_arrays_outlive_their_block_and_their_pool():
    with bucketpool.numpy.pooled() as pool:
        arrays = [numpy.full(LARGE, float(i)) for i in range(4)]
        view = arrays[3][::2]
    del pool
    gc.collect()
    live = bucketpool.stats()["live_bytes"]
    # The next pool must not be where the arrays are.
    with bucketpool.numpy.pooled() as other:
        noise = [numpy.full(LARGE, -1.0) for _ in range(8)]
        assert other.stats()["live_bytes"] == 8 * noise[0].nbytes
    for i, array in enumerate(arrays):
        assert (array == i).all()
    del arrays, noise, array
    assert (view == 3).all()
    del view
    gc.collect()
    assert bucketpool.stats()["live_bytes"] < live


def test_the_next_pool_uses_the_memory_of_one_that_is_gone():
    for _ in range(3):
        with bucketpool.numpy.pooled(decay=None):
            array = numpy.full(LARGE, 1.0)
            address = array.ctypes.data
            del array
    with bucketpool.numpy.pooled() as pool:
        assert numpy.zeros(LARGE).ctypes.data == address
        assert pool.stats()["misses"] == 0


@pytest.mark.parametrize("background", [True, False])
def test_a_pool_that_is_gone_gives_its_memory_back(background):
    with bucketpool.numpy.pooled(decay=None, background=background):
        arrays = [numpy.ones(LARGE) for _ in range(8)]
        del arrays
    gc.collect()
    # The memory goes back a second later by the thread, or at once; or never.
    never = time.monotonic() + 60
    while bucketpool.stats()["cached_bytes"] > 2 << 20:
        assert time.monotonic() < never, bucketpool.stats()


def test_a_process_may_have_many_pools_with_arrays():
    arrays = []
    for _ in range(300):
        with bucketpool.numpy.pooled(background=False) as pool:
            arrays.append(numpy.ones(10_000))
        assert pool.stats()["live_bytes"] > 0
    assert all((array == 1).all() for array in arrays)
    assert len(numpy.ones(1 << 26)) == 1 << 26, "there are addresses left for others"


@pytest.mark.parametrize("elements", [[10, LARGE, 20, LARGE, 4 * LARGE, LARGE, 1]])
def test_a_resized_array_keeps_what_it_holds(elements):
    with bucketpool.numpy.pooled():
        array = numpy.full(elements[0], 5.0)
        for count in elements[1:]:
            kept = min(count, array.size)
            array.resize(count, refcheck=False)
            assert (array[:kept] == 5).all()
            assert not array[kept:].any()
            array[:] = 5


def test_install_serves_this_thread_and_new_ones():
    old = threading.Event()
    ready = threading.Event()
    names = {}

    def waits():
        ready.set()
        old.wait()
        names["old"] = get_handler_name(numpy.ones(LARGE))

    thread = threading.Thread(target=waits)
    thread.start()
    ready.wait()
    pool = bucketpool.numpy.install(limit="64M")
    assert bucketpool.numpy.installed() is pool
    assert get_handler_name(numpy.ones(1)) == OURS
    with ThreadPoolExecutor(2) as executor:
        assert executor.submit(lambda: get_handler_name(numpy.ones(1))).result() == OURS
    old.set()
    thread.join()
    assert names["old"] == NUMPYS, "a thread that runs already keeps its handler"
    bucketpool.numpy.uninstall()
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(lambda: get_handler_name(numpy.ones(1))).result() == NUMPYS


def test_other_wrappers_of_start_stay_and_are_called(monkeypatch):
    bucketpool.numpy.install()
    started = []
    start = threading.Thread.start

    def counted(thread):
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    bucketpool.numpy.install()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    bucketpool.numpy.uninstall()
    assert started == [thread]
    assert threading.Thread.start is counted


def test_a_thread_that_ended_is_freed_without_the_collector():
    class WithArray(threading.Thread):
        def run(self):
            self.array = numpy.ones(LARGE)

    bucketpool.numpy.install()
    gc.collect()
    gc.disable()
    try:
        thread = WithArray()
        thread.start()
        thread.join()
        assert get_handler_name(thread.array) == OURS
        freed = weakref.ref(thread)
        del thread
        assert freed() is None
    finally:
        gc.enable()


def test_a_thread_that_does_not_start_is_as_before(monkeypatch):
    bucketpool.numpy.install()
    thread = threading.Thread(target=lambda: names.append(get_handler_name(numpy.ones(1))))
    names = []

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patch.setattr(threading, name, refuse, raising=False)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
    assert "run" not in vars(thread)
    bucketpool.numpy.uninstall()
    thread = threading.Thread(target=thread.run)
    thread.start()
    thread.join()
    assert names == [NUMPYS]


def test_a_thread_whose_run_is_a_property_warns_and_runs():
    class Property(threading.Thread):
        @property
        def run(self):
            return lambda: names.append(get_handler_name(numpy.ones(100_000)))

        @run.setter
        def run(self, _):
            raise AttributeError

    names = []
    bucketpool.numpy.install()
    try:
        thread = Property()
        with pytest.warns(RuntimeWarning, match="Property are not pooled: its `run` is a property"):
            thread.start()
        thread.join()
    finally:
        bucketpool.numpy.uninstall()
    assert names == [NUMPYS]


def test_a_block_that_ends_inside_of_another_warns():
    def generator():
        with bucketpool.numpy.pooled():
            yield

    opened = generator()
    with pytest.warns(RuntimeWarning, match="changed inside of a block") as warned:
        with bucketpool.numpy.pooled():
            next(opened)
        opened.close()
    assert len(warned) == 2
    bucketpool.numpy.install()


def test_a_second_install_replaces_the_first():
    first, second = bucketpool.numpy.install(), bucketpool.numpy.install()
    array = numpy.ones(LARGE)
    assert (first.stats()["live_bytes"], second.stats()["live_bytes"]) == (0, array.nbytes)
    bucketpool.numpy.uninstall()
    bucketpool.numpy.uninstall()
    assert bucketpool.numpy.installed() is None


def test_threads_have_their_own_blocks_and_free_each_others_arrays():
    left = []
    lock = threading.Lock()

    def work(number):
        with bucketpool.numpy.pooled(limit="16M"):
            for step in range(200):
                array = numpy.full(10_000 + 997 * (step % 50), float(number))
                with lock:
                    left.append((number, array))
                    if len(left) > 20:
                        other, taken = left.pop(0)
                        assert (taken == other).all()
        assert get_handler_name(numpy.ones(1)) == NUMPYS

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(left) == 20
    for number, array in left:
        assert (array == number).all()


def test_tasks_have_their_own_blocks():
    async def task(pool):
        with bucketpool.numpy.pooled(pool):
            await asyncio.sleep(0)
            array = numpy.ones(LARGE)
            await asyncio.sleep(0)
            return pool.stats()["live_bytes"] == array.nbytes

    async def both():
        return await asyncio.gather(*(task(bucketpool.Pool()) for _ in range(3)))

    assert asyncio.run(both()) == [True] * 3


def square(number):
    array = numpy.full(LARGE, float(number))
    return get_handler_name(array), float((array * array).sum())


def test_a_forked_child_uses_its_pools():
    with bucketpool.numpy.pooled() as pool:
        array = numpy.full(LARGE, 3.0)
        child = os.fork()
        if child == 0:
            ok = False
            try:
                more = array + 1
                ok = bool((more == 4).all()) and pool.stats()["live_bytes"] == 2 * array.nbytes
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.stats()["live_bytes"] == array.nbytes


def test_workers_of_multiprocessing_use_an_installed_pool():
    bucketpool.numpy.install()
    with multiprocessing.get_context("fork").Pool(2) as workers:
        results = workers.map(square, range(8))
    assert results == [(OURS, float(LARGE * i * i)) for i in range(8)]


def test_trim_gives_back_at_least_what_is_asked_for():
    pool = bucketpool.Pool(decay=None)
    pool.trim()
    returned = pool.stats()["returned_bytes"]
    with bucketpool.numpy.pooled(pool):
        arrays = [numpy.ones(LARGE) for _ in range(4)]
        del arrays
    cached = pool.stats()["cached_bytes"]
    assert cached == 4 * 8 * LARGE
    assert 8 * LARGE <= pool.trim("8M") < cached
    assert pool.trim() > 0
    stats = pool.stats()
    assert (stats["cached_bytes"], stats["returned_bytes"] - returned) == (0, cached)
    assert bucketpool.trim(0) == 0


def test_an_impossible_array_raises_memory_error():
    with bucketpool.numpy.pooled(), pytest.raises(MemoryError):
        numpy.ones(1 << 56)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"limit": "lots"}, ValueError, '"lots" is no size; expected bytes, or text such as "512M"'),
        ({"limit": "M"}, ValueError, '"M" is no size'),
        ({"limit": "5KM"}, ValueError, '"5KM" is no size'),
        ({"limit": "99999999999G"}, ValueError, "is no size"),
        ({"limit": -1}, ValueError, "-1 is no size"),
        ({"limit": 64}, ValueError, '64 bytes; expected 4096 or more, or "64M" for MiB'),
        ({"limit": "64"}, ValueError, '64 bytes; expected 4096 or more, or "64M" for MiB'),
        ({"limit": 1.5}, ValueError, "1.5 is no size"),
        ({"limit": []}, TypeError, r"\[\] is no size"),
        ({"decay": -1.0}, ValueError, "decay: -1 s: .* expected seconds, or None"),
        ({"decay": "soon"}, TypeError, "decay"),
    ],
)
def test_a_wrong_limit_is_named(arguments, error, text):
    for make in (bucketpool.Pool, bucketpool.numpy.install):
        with pytest.raises(error, match=text):
            make(**arguments)
    with pytest.raises(error, match=text), bucketpool.numpy.pooled(**arguments):
        pass
    assert bucketpool.numpy.installed() is None


def test_a_pool_and_limits_for_another_contradict_each_other():
    pool = bucketpool.Pool()
    with pytest.raises(TypeError, match="expected one of them"):
        bucketpool.numpy.install(pool, limit=5000)
    with pytest.raises(TypeError, match="expected one of them"), bucketpool.numpy.pooled(pool, decay=2):
        pass


def test_statistics_are_those_that_the_types_promise():
    sums = {"allocations", "hits", "misses", "live_bytes", "cached_bytes", "returned_bytes"}
    assert set(bucketpool.stats()) == sums
    assert set(bucketpool.Pool().stats()) == sums | {"live_peak_bytes", "cached_limit_bytes"}
    assert repr(bucketpool.Pool()).startswith("<bucketpool.Pool: 0 large blocks")


def test_examples_in_the_documentation_run():
    failed, tried = doctest.testmod(bucketpool.numpy)
    assert (failed, tried > 0) == (0, True)


def test_the_module_lists_its_own_names_only():
    assert dir(bucketpool.numpy) == ["install", "installed", "pooled", "uninstall"]
    assert not [name for name in dir(bucketpool.Pool) if "handler" in name and name[0] != "_"]
