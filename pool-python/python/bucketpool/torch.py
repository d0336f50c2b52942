"""PyTorch's CUDA tensors in a bucketpool.

``bucketpool.torch.enable()`` before the first tensor on a GPU. Then PyTorch's own functions tell of this
pool: ``torch.cuda.memory_stats`` and all that is computed from it (``memory_allocated``,
``max_memory_reserved``, ``memory_summary``, ..), ``reset_peak_memory_stats``,
``reset_accumulated_memory_stats``, ``memory_snapshot``, ``empty_cache``, the fraction of
``set_per_process_memory_fraction``, and the functions of ``torch.accelerator`` for memory. What does not work: ``torch.cuda.MemPool`` and ``use_mem_pool``,
sharing CUDA tensors between processes, ``_record_memory_history``. See docs/python-gpu.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ._library import Error, library, settings_of

__all__ = [
    "all_stats",
    "empty_cache",
    "enable",
    "is_enabled",
    "memory_map",
    "report",
    "stats",
    "upstream",
]

# The versions whose headers the C++ part was compiled against.
CHECKED = ("2.15",)

_enabled = False
_fractions: dict[int, float] = {}
# Nobody may free what PyTorch calls.
_kept: list[Any] = []


def _torch() -> Any:
    """Returns PyTorch, if it is one with CUDA."""
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(
            f"PyTorch {torch.__version__} was built without CUDA; expected a build with it,"
            " such as `pip install torch` gives on Linux"
        )
    return torch


def is_enabled() -> bool:
    """Returns whether PyTorch's tensors are in this pool."""
    return _enabled


def enable(
    policy: str | None = None,
    limit: int | str | None = None,
    memory: str = "cuda",
    *,
    settings: str | None = None,
) -> None:
    """Has PyTorch allocate its CUDA tensors from the process's one pool of each device.

    Call it before CUDA is used. A second call does nothing, and raises if it asks for other settings.

    policy: "arena" by default; see docs/policies.md. limit: of reserved bytes for each device, a number
    or text such as "20G". memory: "cuda", "cuda-vmm" (pages that go back one by one) or "cuda-async".
    settings: TOML with the keys of docs/configuration.md, in place of the first two.
    """
    global _enabled
    torch = _torch()
    toml = settings_of(policy, limit, settings)
    if settings is None:
        toml += b"\nshards = 1"  # PyTorch holds a lock round each call anyway, and peaks are exact
    wanted = (toml, memory)
    if _enabled:
        if wanted != _kept[0]:
            raise RuntimeError("bucketpool.torch is enabled with other settings")
        return
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "PyTorch has used CUDA already; expected bucketpool.torch.enable() before its first use"
        )
    if not memory.startswith("cuda"):
        raise ValueError(f'memory "{memory}"; expected "cuda", "cuda-vmm" or "cuda-async"')
    ours = library()
    ours.call("bp_set_devices", wanted[0], memory.encode())
    shim = _shim(torch)
    begin = ctypes.cast(shim.bp_torch_begin_filtered, ctypes.c_void_p).value
    shim.bp_torch_throws()
    hooks = torch._C._cuda_customAllocator(
        ours.address("bp_torch_alloc"), ours.address("bp_torch_free")
    )
    hooks.set_record_stream_fn(ours.address("bp_torch_record"))
    hooks.set_reset_fn(ours.address("bp_torch_empty"))
    hooks.set_memory_fraction_fn(ours.address("bp_torch_fraction"))
    hooks.set_base_alloc_fn(ours.address("bp_torch_base"))
    hooks.set_begin_allocate_to_pool(begin)
    hooks.set_end_allocate_to_pool_fn(ours.address("bp_torch_end"))
    hooks.set_release_pool(ours.address("bp_torch_release"))
    torch.cuda.memory.change_current_allocator(torch.cuda.memory._CUDAAllocator(hooks))
    _kept.extend([wanted, shim, hooks])
    _replace(torch)
    _enabled = True


def _shim(torch: Any) -> ctypes.CDLL:
    """Returns the C++ part: that which throws `torch.OutOfMemoryError`, compiled once for this PyTorch
    where there is a compiler, else that of the wheel, which throws RuntimeError."""
    package = Path(__file__).parent
    source = package / "bucketpool_torch.cpp"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler:
        try:
            return _compiled(torch, compiler, source)
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            warnings.warn(f"bucketpool: {compiler}: {said.strip()[-300:]}", stacklevel=3)
    shipped = package / "libbucketpool_torch.so"
    if not shipped.is_file():
        raise RuntimeError(
            "no C++ compiler, and no libbucketpool_torch.so in the package; expected g++ on the PATH,"
            " or in CXX"
        )
    warnings.warn(
        "bucketpool: without a C++ compiler, out of memory is a RuntimeError and no"
        " torch.OutOfMemoryError",
        stacklevel=3,
    )
    return ctypes.CDLL(str(shipped))


def _compiled(torch: Any, compiler: str, source: Path) -> ctypes.CDLL:
    """Compiles the C++ part against this PyTorch's headers, or finds it compiled, and loads it."""
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    key = f"{torch.__version__} {home} {compiler} {abi}".encode() + source.read_bytes()
    name = f"torch-{torch.__version__}-{hashlib.sha256(key).hexdigest()[:16]}.so"
    kept = _cache()
    if kept and (kept / name).is_file():
        try:
            return ctypes.CDLL(str(kept / name))
        except OSError:
            pass  # a damaged file, which a new one replaces
    # Several processes of one run may compile it at once: each moves its own to the place.
    with tempfile.TemporaryDirectory(prefix="bucketpool-", dir=kept) as folder:
        built = Path(folder) / name
        command = [
            *shlex.split(compiler), "-std=c++17", "-O1", "-shared", "-fPIC", "-DBUCKETPOOL_TORCH",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{home}/include", str(source), "-o", str(built),
            f"-L{home}/lib", "-lc10", f"-Wl,-rpath,{home}/lib",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        if kept:
            os.replace(built, kept / name)
            return ctypes.CDLL(str(kept / name))
        return ctypes.CDLL(str(built))  # loaded, it needs the file no more


def _cache() -> Path | None:
    """Returns the folder for what is compiled, if there is one that can be written."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home) / "bucketpool"
        cache.mkdir(parents=True, exist_ok=True)
        return cache if os.access(cache, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # no home
        return None


def _index(device: Any) -> int:
    """Returns the number of a device: of an int, a `torch.device`, its name, or of the current one."""
    torch = _torch()
    index: int = torch.cuda._utils._get_device_index(device, optional=True)
    return index


def _pool(device: Any) -> int:
    return library().pool_of_device(None, _index(device))


# The names of `torch.cuda.memory_stats`, which a device has that was not used.
_FIGURES = {
    **{
        f"{name}.{part}.{figure}": 0
        for name in (
            "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
            "active_bytes", "inactive_split_bytes", "requested_bytes",
        )
        for part in ("all", "small_pool", "large_pool")
        for figure in ("current", "peak", "allocated", "freed")
    },
    # No request is above a largest size that is split.
    **{
        f"{name}.{figure}": 0
        for name in ("oversize_allocations", "oversize_segments")
        for figure in ("current", "peak", "allocated", "freed")
    },
    "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0, "num_device_alloc": 0,
    "num_device_free": 0, "max_split_size": -1,
}  # fmt: skip


def stats(device: Any = None) -> dict[str, int]:
    """Returns the figures of a device's pool by the names of `torch.cuda.memory_stats`: all 0 for a
    device that was not used."""
    pool = library().pool_if_made(_index(device))
    figures = library().json_of("bp_stats_json", pool)["torch"] if pool else {}
    return {**_FIGURES, **figures}


def pool_stats(device: Any = None) -> dict[str, Any]:
    """Returns the figures of a device's pool by our names (docs/statistics.md)."""
    figures: dict[str, Any] = library().json_of("bp_stats_json", _pool(device))["pool"]
    return figures


def memory_map(device: Any = None) -> dict[str, Any]:
    """Returns where the memory of a device's pool is: segments and their ranges, none for a device that was
    not used."""
    pool = library().pool_if_made(_index(device))
    found: dict[str, Any] = library().json_of("bp_map_json", pool) if pool else {"segments": []}
    return found


def empty_cache() -> None:
    """Gives all cached memory of all devices back, as `torch.cuda.empty_cache` does."""
    library().c.bp_torch_empty()


def report(path: str | os.PathLike[str], device: Any = None) -> None:
    """Writes the figures and a picture of the memory of a device's pool to a file."""
    library().call("bp_report", _pool(device), os.fspath(path).encode())


def all_stats(device: Any = None, group: Any = None) -> list[dict[str, int]]:
    """Returns `stats` of every rank of a process group, on every rank: a collective call.

    Without `torch.distributed`, or before its start, the list has this process alone.
    """
    import torch.distributed as distributed

    own = stats(device)
    if not (distributed.is_available() and distributed.is_initialized()):
        return [own]
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, own, group=group)
    return gathered


def upstream() -> Any:
    """Returns a `torch.cuda.MemPool` whose segments are of this pool, beside PyTorch's own allocator.

    The tensors are in PyTorch's cache of those segments, and not in this pool: PyTorch asks for segments
    of 2 and 20 MiB, and caches what is freed. Use it to have one limit and one account with other
    libraries. After `enable()` PyTorch refuses it.
    """
    torch = _torch()
    if _enabled:
        raise RuntimeError("upstream() after enable(); expected one of them: PyTorch has one plug")
    ours = library()
    hooks = torch._C._cuda_customAllocator(
        ours.address("bp_torch_upstream_alloc"), ours.address("bp_torch_upstream_free")
    )
    _kept.append(hooks)
    return torch.cuda.MemPool(hooks)


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, figure in flat.items():
        *path, last = name.split(".")
        inner = nested
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = figure
    return nested


def _snapshot(_options: Any = None) -> dict[str, Any]:
    """Returns the segments of all devices as PyTorch's snapshots have them. Addresses begin at 0 in each
    device's first segment: the map has no others."""
    torch = _torch()
    states = {"Used": "active_allocated", "Private": "inactive", "Pending": "active_awaiting_free"}
    segments = []
    for device in range(torch.cuda.device_count()):
        start = 0
        for segment in memory_map(device)["segments"]:
            blocks = []
            for held in segment["ranges"]:
                first, end = held["range"]["start"], held["range"]["end"]
                state = states.get(held["state"], "inactive")
                blocks.append(
                    {"address": start + first, "size": end - first, "requested_size": end - first,
                     "state": state, "frames": []}
                )  # fmt: skip
            used = [block for block in blocks if block["state"] != "inactive"]
            segments.append(
                {"device": device, "address": start, "total_size": segment["bytes"],
                 "allocated_size": sum(block["size"] for block in used),
                 "active_size": sum(block["size"] for block in used),
                 "requested_size": sum(block["size"] for block in used),
                 "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                 "is_expandable": False, "frames": [], "blocks": blocks}
            )  # fmt: skip
            start += segment["bytes"]
    return {"segments": segments, "device_traces": [], "allocator_settings": {}, "external_annotations": []}


def _replace(torch: Any) -> None:
    """Puts our figures in the place of those that PyTorch refuses under a plug."""
    c = torch._C

    def remember(fraction: float, device: int) -> None:
        library().call("bp_set_fraction", _pool(device), fraction, None)
        _fractions[device] = fraction

    def reset(call: str) -> Any:
        def reset_device(device: Any) -> None:
            if pool := library().pool_if_made(_index(device)):
                library().call(call, pool)

        return reset_device

    def nested(device: Any) -> dict[str, Any]:
        return _nested(stats(device))

    for name, ours in {
        "_cuda_memoryStats": nested,
        "_cuda_memorySnapshot": _snapshot,
        "_cuda_resetPeakMemoryStats": reset("bp_reset_peaks"),
        "_cuda_resetAccumulatedMemoryStats": reset("bp_reset_counts"),
        "_cuda_getMemoryFraction": lambda device: _fractions.get(device, 1.0),
        "_cuda_setMemoryFraction": remember,
        # torch.accelerator
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_getDeviceStats": nested,
        "_accelerator_resetPeakStats": reset("bp_reset_peaks"),
        "_accelerator_resetAccumulatedStats": reset("bp_reset_counts"),
    }.items():
        if hasattr(c, name):
            setattr(c, name, ours)


__all__ += ["Error", "pool_stats"]
