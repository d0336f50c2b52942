"""CuPy's memory pool, as its users call it; the questions are those of peer.hpp."""

import json
import sys
import threading
import time

import cupy

pool = cupy.cuda.MemoryPool()
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(17)]


def pair(size, threads, pairs):
    took = [None] * threads
    refused = []
    all_are_there = threading.Barrier(threads)

    def work(number):
        try:
            cupy.cuda.Device(0).use()
            with streams[number]:
                pool.malloc(size)
                all_are_there.wait()
                start = time.perf_counter_ns()
                for _ in range(pairs):
                    pool.malloc(size)
                took[number] = (time.perf_counter_ns() - start) / pairs
        except Exception as error:  # told by whoever joins
            refused.append(error)
            all_are_there.abort()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    cupy.cuda.Device(0).synchronize()
    if refused:
        raise refused[0]
    return {"ns": sum(took) / threads, "reserved_peak_bytes": 0}


def synced(size, pairs):
    with streams[0]:
        start = time.perf_counter_ns()
        for _ in range(pairs):
            pool.malloc(size)
            streams[0].synchronize()
        took = time.perf_counter_ns() - start
    return {"ns": took / pairs, "reserved_peak_bytes": 0}


def many(count, size, rounds):
    with streams[0]:
        start = time.perf_counter_ns()
        for _ in range(rounds):
            blocks = [pool.malloc(size) for _ in range(count)]
            del blocks
        took = time.perf_counter_ns() - start
    return {"ns": took / (2 * count * rounds), "reserved_peak_bytes": 0}


def record(size, pairs, recorded):
    if recorded:
        raise NotImplementedError("CuPy does not know of other streams' uses")
    with streams[1]:
        others = pool.malloc(size)
    with streams[0]:
        start = time.perf_counter_ns()
        for _ in range(pairs):
            block = pool.malloc(size)
            others.memset_async(1, 4, streams[1])
            del block
        took = time.perf_counter_ns() - start
    cupy.cuda.Device(0).synchronize()
    return {"ns": took / pairs, "reserved_peak_bytes": 0}


def trace(name):
    with open(name, encoding="ascii") as file:
        steps = [line.split() for line in file]
    reset()
    live, took, peak = {}, 0, 0
    with streams[0]:
        for step in steps:
            block = live.pop(step[1], None)
            if step[0] == "a":
                size = int(step[2])
                start = time.perf_counter_ns()
                block = pool.malloc(size)
                took += time.perf_counter_ns() - start
                block.memset_async(1, size, streams[0])
                live[step[1]] = block
                block = None
                peak = max(peak, pool.total_bytes())
            else:
                start = time.perf_counter_ns()
                block = None
                took += time.perf_counter_ns() - start
        live.clear()
    cupy.cuda.Device(0).synchronize()
    return {"ns": took / max(len(steps), 1), "reserved_peak_bytes": peak}


def reset():
    cupy.cuda.Device(0).synchronize()
    pool.free_all_blocks()
    return {"ns": 0.0, "reserved_peak_bytes": 0}


for line in sys.stdin:
    what, *arguments = line.split()
    questions = {"pair": pair, "many": many, "record": record, "synced": synced}
    questions |= {"trace": trace, "reset": reset}
    try:
        arguments = arguments if what == "trace" else [int(word) for word in arguments]
        answer = questions[what](*arguments)
    except Exception as error:  # whatever it is, the contest is told and goes on
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(answer), flush=True)
