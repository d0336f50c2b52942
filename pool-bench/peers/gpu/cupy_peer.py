"""CuPy's memory pool, as its users call it; the questions are those of peer.hpp."""

import json
import sys
import threading
import time

import cupy

pool = cupy.cuda.MemoryPool()
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(17)]


def pair(size, threads, pairs):
    took = [0.0] * threads

    def work(number):
        cupy.cuda.Device(0).use()
        with streams[number]:
            pool.malloc(size)
            start = time.perf_counter_ns()
            for _ in range(pairs):
                pool.malloc(size)
            took[number] = (time.perf_counter_ns() - start) / pairs

    if threads == 1:
        work(0)
    else:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return {"ns": sum(took) / threads, "reserved_peak_bytes": 0}


def many(count, size, rounds):
    with streams[0]:
        start = time.perf_counter_ns()
        for _ in range(rounds):
            blocks = [pool.malloc(size) for _ in range(count)]
            del blocks
        took = time.perf_counter_ns() - start
    return {"ns": took / (2 * count * rounds), "reserved_peak_bytes": 0}


def record(size, pairs):
    raise NotImplementedError("CuPy does not know of other streams' uses")


def trace(name):
    with open(name, encoding="ascii") as file:
        steps = [line.split() for line in file]
    reset()
    live, took, peak = {}, 0, 0
    with streams[0]:
        for step in steps:
            start = time.perf_counter_ns()
            if step[0] == "a":
                block = pool.malloc(int(step[2]))
                took += time.perf_counter_ns() - start
                block.memset_async(1, int(step[2]), streams[0])
                live[step[1]] = block
                del block
                peak = max(peak, pool.total_bytes())
            else:
                live.pop(step[1], None)
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
    questions = {"pair": pair, "many": many, "record": record, "trace": trace, "reset": reset}
    try:
        arguments = arguments if what == "trace" else [int(word) for word in arguments]
        answer = questions[what](*arguments)
    except Exception as error:  # whatever it is, the contest is told and goes on
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(answer), flush=True)
