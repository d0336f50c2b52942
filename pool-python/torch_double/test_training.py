"""The memory of one training in PyTorch's own allocators and in ours, and what each asks of the driver."""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROWS = ["own", "expandable", "pool arena:torch", "pool arena", "pool arena --memory cuda-vmm",
        "pool arena --memory cuda-async"]  # fmt: skip


def trained(row):
    command = [sys.executable, str(HERE / "training.py"), *row.split()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{row}\n{ran.stdout}\n{ran.stderr}"
    return json.loads(ran.stdout.splitlines()[-1])


def waits(found):
    calls = found["calls"]
    return sum(calls[name] for name in ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"))


def test_our_memory_for_a_training_is_at_most_that_of_pytorchs_allocators():
    found = {row: trained(row) for row in ROWS}
    print()
    for row, figures in sorted(found.items(), key=lambda item: -item[1]["reserved_peak_bytes"]):
        calls = {name: count for name, count in figures["calls"].items() if count}
        print(f"{row:32} {figures['reserved_peak_bytes'] / 2**20:7.1f} MiB, {calls}")
    reserved = {row: figures["reserved_peak_bytes"] for row, figures in found.items()}
    # PyTorch's rules take the same memory in both.
    assert reserved["pool arena:torch"] == reserved["own"]
    assert reserved["pool arena"] <= reserved["own"]
    assert reserved["pool arena --memory cuda-vmm"] <= reserved["expandable"]
    for row, figures in found.items():
        assert figures["hazards"] == 0, row
        # No allocation waits for work of the device: all waits are the program's own.
        assert waits(figures) == waits(found["own"]), (row, figures)
    ours, theirs = (found[row]["calls"] for row in ("pool arena --memory cuda-vmm", "expandable"))
    assert ours["cuMemCreate"] <= theirs["cuMemCreate"]
