"""Makes arrays of five sizes and computes `(a + b) * (a - b)` in float32 with them, as often for each size
as makes it equally long.

`ones` makes them by `ones` and `arange`; `rand` by `random.rand(n).astype`, which frees an array of twice
the bytes. The arrays of the size before are there while the next ones are made. Prints `done` when they are
freed, and waits for the end of its input.
"""

import gc
import sys

import numpy

ELEMENTS = 1 << 26  # of all arrays of one size together
smoke = "--smoke" in sys.argv
for n in [1000, 1 << 16] if smoke else [1000, 1 << 16, 1 << 20, 1 << 22, 1 << 24]:
    if sys.argv[1] == "ones":
        a, b = numpy.ones(n, "f4"), numpy.arange(n, dtype="f4")
    else:
        a, b = numpy.random.rand(n).astype("f4"), numpy.random.rand(n).astype("f4")
    for _ in range(5 if smoke else max(10, min(2000, 8 * ELEMENTS // n))):
        c = (a + b) * (a - b)
    assert c[-1] == (a[-1] + b[-1]) * (a[-1] - b[-1])
del a, b, c
gc.collect()
print("done", flush=True)
sys.stdin.read()
