"""Times `(a + b) * (a - b)` in float32 for five sizes, and prints a line of JSON for each.

With `--larger-freed` an array of twice the bytes is freed before each size, as in
`numpy.random.rand(n).astype("f4")`: glibc then keeps freed memory up to that size, and takes it from its
heap (M_MMAP_THRESHOLD in mallopt(3), up to 32 MiB). Without it the inputs are the first arrays of their
size, and the last line has the memory that is resident 12 s after the work.
"""

import gc
import json
import os
import sys
import time

import numpy

SIZES = [1000, 64 << 10, 1 << 20, 4 << 20, 16 << 20]
BEST_OF = 7


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def expression(elements, seconds):
    """Returns the CPU time of one expression in ns: the best of seven series."""
    if "--larger-freed" in sys.argv:
        larger = numpy.ones(elements, dtype=numpy.float64)
        del larger
    a = numpy.arange(elements, dtype=numpy.float32)
    b = numpy.ones(elements, dtype=numpy.float32)
    best, count = float("inf"), 1
    for series in range(1 + BEST_OF):
        start = time.thread_time_ns()
        for _ in range(count):
            c = (a + b) * (a - b)
        took = (time.thread_time_ns() - start) / count
        if series == 0:  # a cold series finds out how many fit into the time
            count = max(1, int(seconds * 1e9 / max(took, 1)))
        else:
            best = min(best, took)
    assert c[-1] == (a[-1] + 1) * (a[-1] - 1)
    return best


smoke = "--smoke" in sys.argv
if "--install" in sys.argv:
    import bucketpool.numpy

    bucketpool.numpy.install()
for elements in SIZES[:2] if smoke else SIZES:
    ns = expression(elements, 0.001 if smoke else 0.1)
    print(json.dumps({"elements": elements, "ns": ns, "resident_bytes": resident_bytes()}))
if "--larger-freed" in sys.argv:
    sys.exit()
gc.collect()
time.sleep(0 if smoke else 12)
print(json.dumps({"elements": 0, "ns": None, "resident_bytes": resident_bytes()}))
