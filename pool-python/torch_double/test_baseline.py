"""PyTorch's own allocators on the double of libcuda: what bucketpool is compared with, and whether the
stand-ins carry PyTorch. `cargo xtask torch baseline` runs it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = Path(__file__).with_name("training.py")
MIB = 1 << 20


def program(*arguments):
    """Runs a Python program in a process of its own, and returns what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def training(*arguments):
    found = json.loads(program(TRAINING, *arguments))
    calls = ", ".join(f"{name} {count}" for name, count in found["calls"].items() if count)
    peaks = [found[f"{what}_peak_bytes"] / MIB for what in ("allocated", "reserved")]
    print(f"\n{found['allocator']}: peak {peaks[0]:.0f} MiB allocated, {peaks[1]:.0f} reserved; {calls}")
    return found


@pytest.fixture(scope="module")
def own():
    return training("own")


@pytest.fixture(scope="module")
def expandable():
    return training("expandable")


def test_a_training_runs_on_pytorchs_own_allocator(own):
    calls = own["calls"]
    assert own["hazards"] == 0
    assert 300 * MIB < own["allocated_peak_bytes"] < own["reserved_peak_bytes"] < 1024 * MIB
    assert 10 < calls["cuMemAlloc_v2"] < own["allocations"] / 50, "it caches"
    assert calls["cuMemCreate"] == calls["cuMemMap"] == 0


def test_a_training_runs_on_expandable_segments(own, expandable):
    calls = expandable["calls"]
    assert expandable["hazards"] == 0
    assert expandable["requested_peak_bytes"] == own["requested_peak_bytes"], "the same training"
    assert expandable["allocated_peak_bytes"] < expandable["reserved_peak_bytes"] < 1024 * MIB
    assert calls["cuMemAlloc_v2"] == 0
    assert calls["cuMemCreate"] == calls["cuMemMap"] > 10


def test_a_training_repeats(own):
    assert training("own") == own


def test_an_allocation_above_the_device_is_refused():
    done = program(
        "-c",
        "import torch\n"
        "x = torch.empty(1000, device='cuda')\n"
        "try: torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error: print(str(error).splitlines()[0])\n"
        "print(torch.arange(5, dtype=torch.uint8).to('cuda').cpu().tolist())",
    )
    assert done.startswith("CUDA out of memory. Tried to allocate 2.00 GiB.") and "[0, 1, 2, 3, 4]" in done


def test_streams_copies_and_graphs_are_the_doubles():
    done = program(
        "-c",
        "import ctypes, torch\n"
        "double = ctypes.CDLL('libcuda.so')\n"
        "x = torch.zeros(256, device='cuda')\n"
        "side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()\n"
        "side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side):\n"
        "    y = torch.empty(256, device='cuda'); y.copy_(torch.ones(256).pin_memory(), non_blocking=True)\n"
        "print(side.query())\n"
        "torch.cuda.current_stream().wait_stream(side)\n"
        "y.record_stream(torch.cuda.current_stream())\n"
        "torch.cuda.synchronize()\n"
        "print(side.query())\n"
        "with torch.cuda.graph(graph): x.copy_(y)\n"
        "y.copy_(torch.full((256,), 3.0)); graph.replay(); torch.cuda.synchronize()\n"
        "print(x.cpu()[7].item(), double.cuda_double_hazards())\n"
        "other = torch.empty(256, device='cuda')\n"
        "with torch.cuda.stream(side): other.copy_(y)\n"
        "y.copy_(x); print(double.cuda_double_hazards())",
    )
    # The stream is busy until it is waited for; the last two copies are not ordered.
    assert done.split() == ["False", "True", "3.0", "0", "1"]


def test_a_snapshot_of_the_training_is_kept(tmp_path):
    file = tmp_path / "training.pickle"
    training("own", "--steps", "2", "--record", str(file))
    assert file.stat().st_size > 100_000
