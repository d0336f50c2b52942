"""Builds the wheel: maturin does, after ``libbucketpool.so`` is built and put beside the package.

maturin builds one library for a wheel, and this package has two. There is no source distribution:
the package is built from a checkout of the whole repository.
"""

import os
import re
import shutil
import subprocess
import zipfile
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
# The versions of symbols that a library asks for, in the table of their names.
GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


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


def _check_libraries(wheel: Path) -> None:
    """Raises if the library needs a newer glibc than the module, by which the wheel is tagged."""
    with zipfile.ZipFile(wheel) as files:
        needed = {
            name: max(
                (tuple(map(int, version)) for version in GLIBC.findall(files.read(name))),
                default=(0, 0),
            )
            for name in files.namelist()
            if name.endswith(".so")
        }
    module = max(version for name, version in needed.items() if "_bucketpool" in name)
    library = max(version for name, version in needed.items() if "libbucketpool" in name)
    if library > module:
        raise RuntimeError(
            f"libbucketpool.so needs glibc {library}; expected at most {module}, as the module does"
        )


def build_wheel(wheel_directory: str, *arguments: object, **named: object) -> str:
    _add_library()
    wheel = maturin.build_wheel(wheel_directory, *arguments, **named)
    _check_libraries(Path(wheel_directory) / wheel)
    return wheel


def build_editable(*arguments: object, **named: object) -> str:
    _add_library()
    return maturin.build_editable(*arguments, **named)
