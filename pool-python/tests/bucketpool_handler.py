"""A pytest plugin that runs other people's tests with a pool installed: ``-p bucketpool_handler``."""

import bucketpool.numpy


def pytest_configure(config):
    bucketpool.numpy.install()


def pytest_terminal_summary(terminalreporter):
    stats = bucketpool.stats()
    terminalreporter.write_line(f"bucketpool: {stats['allocations']} arrays from 64 KiB")
    assert stats["allocations"] > 0, "no array came from the pool"
