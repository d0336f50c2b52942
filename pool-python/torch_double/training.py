"""A training of PyTorch on the double of libcuda: how much memory an allocator takes for it.

    python training.py own | expandable | pool [POLICY]   [--memory M] [--steps N] [--record FILE]

A small transformer is trained with AdamW on batches of varied lengths. Kernels do nothing, so shapes,
allocations and their order are those of a training, and values are not. It prints a line of JSON: peaks
in bytes, calls of the driver, and hazards (uses of memory that nothing orders).

`own` is PyTorch's caching allocator, `expandable` the same with expandable segments, and `pool` is
bucketpool's. `--record` keeps PyTorch's memory history as a snapshot that `cargo xtask replay` and
memory_viz read. Run it as `cargo xtask torch` runs the tests beside it.
"""

import argparse
import ctypes
import json
import os
import random
import sys

# Calls of the driver that are counted, by the names in the double.
CALLS = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuEventRecord",
    "cuEventQuery",
]
LAYERS, WIDTH, HEADS, WORDS, LONGEST = 4, 384, 6, 4096, 448


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("allocator", choices=["own", "expandable", "pool"])
    parser.add_argument("policy", nargs="?", help="a policy of bucketpool; its default without one")
    parser.add_argument("--memory", default="cuda", help="of `pool`: cuda, cuda-vmm or cuda-async")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--record", metavar="FILE", help="keep PyTorch's memory history there")
    chosen = parser.parse_args()
    if chosen.policy and chosen.allocator != "pool":
        parser.error(f"a policy behind `{chosen.allocator}`; only `pool` has policies")
    if chosen.record and chosen.allocator == "pool":
        parser.error("--record with `pool`; expected `own` or `expandable`, which keep a history")
    return chosen


class Layer:
    """Attention and a feed-forward part, written out so that each result is an allocation."""

    def __init__(self, torch, device):
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, device=device)
        self.functions = torch.nn.functional
        self.norms = [torch.nn.LayerNorm(WIDTH, device=device) for _ in range(2)]
        self.projection, self.output = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.wide, self.narrow = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def modules(self):
        return [*self.norms, self.projection, self.output, self.wide, self.narrow]

    def __call__(self, x):
        batch, length, _ = x.shape
        parts = self.projection(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        scores = (query @ key.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        mixed = self.functions.dropout(scores.softmax(-1), 0.1) @ value
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(self.functions.gelu(self.wide(self.norms[1](x))))


def train(torch, steps):
    """Runs the steps. The same seed gives the same shapes in each run."""
    dice, device = random.Random(7), "cuda"
    words = torch.nn.Embedding(WORDS, WIDTH, device=device)
    places = torch.nn.Embedding(LONGEST, WIDTH, device=device)
    layers = [Layer(torch, device) for _ in range(LAYERS)]
    head = torch.nn.Linear(WIDTH, WORDS, bias=False, device=device)
    modules = [words, places, head, *(module for layer in layers for module in layer.modules())]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    for _ in range(steps):
        batch, length = dice.choice([2, 3, 4, 6]), dice.randrange(48, LONGEST)
        # Real copies of the double, from page-locked memory.
        text = torch.zeros(batch, length, dtype=torch.long).pin_memory().to(device, non_blocking=True)
        target = torch.zeros(batch * length, dtype=torch.long).to(device)
        x = words(text) + places(torch.arange(length, device=device))
        for layer in layers:
            x = layer(x)
        loss = torch.nn.functional.cross_entropy(head(x).view(-1, WORDS), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the stream, as a training that prints its loss
        del x, loss, text, target


def main():
    chosen = options()
    os.environ.setdefault("CUDA_DOUBLE_GIB", "4")
    # cuBLASLt has no stand-in that picks an algorithm.
    os.environ["DISABLE_ADDMM_CUDA_LT"] = "1"
    if chosen.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    if chosen.allocator == "pool":
        import bucketpool.torch

        bucketpool.torch.enable(policy=chosen.policy, memory=chosen.memory)
    if chosen.record:
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000)
    train(torch, chosen.steps)
    torch.cuda.synchronize()
    if chosen.record:
        torch.cuda.memory._dump_snapshot(chosen.record)
    ours = chosen.allocator == "pool"
    stats = bucketpool.torch.stats() if ours else torch.cuda.memory_stats()
    double = ctypes.CDLL("libcuda.so")
    double.cuda_double_count.restype = ctypes.c_uint64
    double.cuda_double_hazards.restype = ctypes.c_size_t
    found = {
        "allocator": " ".join(filter(None, [chosen.allocator, chosen.policy])),
        "memory": chosen.memory,
        "steps": chosen.steps,
        "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
        "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
        "calls": {name: double.cuda_double_count(name.encode()) for name in CALLS},
        "hazards": double.cuda_double_hazards(),
    }
    if not ours:
        found["requested_peak_bytes"] = stats["requested_bytes.all.peak"]
        found["allocations"] = stats["allocation.all.allocated"]
        found["retries"] = stats["num_alloc_retries"]
    print(json.dumps(found))
    return 1 if found["hazards"] else 0


if __name__ == "__main__":
    sys.exit(main())
