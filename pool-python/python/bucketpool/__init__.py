"""Memory pools for NumPy arrays, and programs with bucketpool's malloc.

Three ways, the simplest first:

- ``python -m bucketpool run script.py`` runs a script with ``libbucketpool.so`` as its malloc.
- ``bucketpool.numpy.install()`` has NumPy allocate its arrays from a pool, in this process.
- ``with bucketpool.numpy.pooled():`` does so for a part of a program.

``bucketpool.stats()`` and ``bucketpool.trim()`` look after the pools of this process.
"""

from ._bucketpool import Pool, stats, trim

__all__ = ["Pool", "stats", "trim"]
