"""Builds the wheel: maturin does, after the other libraries are built and put beside the package.

maturin builds one library for a wheel, and this package has four: the module, ``libbucketpool.so`` for
programs that are not changed, ``libbucketpool_c.so`` with the functions of ``bucketpool.h``, and
``libbucketpool_torch.so``, the C++ part of the plug for PyTorch where no compiler is at hand. There is no
source distribution: the package is built from a checkout of the whole repository.
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


def _add_libraries() -> None:
    cargo = os.environ.get("CARGO", "cargo")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for package, profile in (("pool-preload", "preload"), ("pool-c", "release")):
        build = ["build", "--locked", "--package", package, "--profile", profile]
        subprocess.run([cargo, *build, "--target-dir", str(target)], cwd=ROOT, check=True)
    files = [target / "preload/libbucketpool.so", ROOT / "pool-preload/bucketpool-run"]
    files += [target / "release/libbucketpool_c.so", *(ROOT / "pool-c/include").iterdir()]
    if plug := _compiled_plug(target):
        files.append(plug)
    for file in files:
        # A program may have the old library mapped, so it is not written over.
        copy = PACKAGE / (file.name + ".new")
        shutil.copy2(file, copy)
        os.replace(copy, PACKAGE / file.name)


def _compiled_plug(target: Path) -> Path | None:
    """Compiles the C++ part of the plug for PyTorch without PyTorch's headers. Without a compiler the wheel
    has none, and PyTorch's users need one."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        print("no C++ compiler: the wheel has no libbucketpool_torch.so")
        return None
    built = target / "release/libbucketpool_torch.so"
    options = ["-std=c++17", "-O1", "-s", "-shared", "-fPIC"]
    source = PACKAGE / "bucketpool_torch.cpp"
    subprocess.run([*compiler.split(), *options, str(source), "-o", str(built)], check=True)
    return built


def _check_libraries(wheel: Path) -> None:
    """Raises if a library needs a newer glibc than the module, by which the wheel is tagged."""
    with zipfile.ZipFile(wheel) as files:
        needed = {
            name: max(
                (tuple(map(int, version)) for version in GLIBC.findall(files.read(name))),
                default=(0, 0),
            )
            for name in files.namelist()
            if name.endswith(".so")
        }
    module = max(version for name, version in needed.items() if "/_bucketpool" in name)
    for name, version in needed.items():
        if version > module:
            raise RuntimeError(
                f"{name} needs glibc {version}; expected at most {module}, as the module does"
            )


def build_wheel(wheel_directory: str, *arguments: object, **named: object) -> str:
    _add_libraries()
    wheel = maturin.build_wheel(wheel_directory, *arguments, **named)
    _check_libraries(Path(wheel_directory) / wheel)
    return wheel


def build_editable(*arguments: object, **named: object) -> str:
    _add_libraries()
    return maturin.build_editable(*arguments, **named)
