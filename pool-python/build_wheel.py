"""Builds the wheel: maturin does, after ``libbucketpool.so`` is built and put beside the package.

maturin builds one library for a wheel, and this package has two. There is no source distribution:
the package is built from a checkout of the whole repository.
"""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pool-python/python/bucketpool"


def _add_library() -> None:
    cargo = os.environ.get("CARGO", "cargo")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    build = ["build", "--locked", "--package", "pool-preload", "--profile", "preload"]
    subprocess.run([cargo, *build, "--target-dir", str(target)], cwd=ROOT, check=True)
    for file in (target / "preload/libbucketpool.so", ROOT / "pool-preload/bucketpool-run"):
        # A program may have the old library mapped, so it is not written over.
        copy = PACKAGE / (file.name + ".new")
        shutil.copy2(file, copy)
        os.replace(copy, PACKAGE / file.name)


def build_wheel(*arguments: object, **named: object) -> str:
    _add_library()
    return maturin.build_wheel(*arguments, **named)


def build_editable(*arguments: object, **named: object) -> str:
    _add_library()
    return maturin.build_editable(*arguments, **named)
