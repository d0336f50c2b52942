"""A pytest plugin that runs other people's tests with a pool installed: ``-p bucketpool_handler``."""

import pathlib

import bucketpool.numpy
import numpy
from numpy._core.multiarray import get_handler_name


def pytest_configure(config):
    bucketpool.numpy.install()


def pytest_sessionfinish():
    """Writes which handler arrays have, for those who run the tests."""
    pathlib.Path("handler").write_text(get_handler_name(numpy.zeros(1)))
