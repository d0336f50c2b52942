"""Two ranks of one training, each with its own limit: `torchrun` on the double."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, os, sys
import bucketpool.torch as pool

rank = int(os.environ["RANK"])
pool.enable(policy="pow2", limit=(rank + 1) * 64 << 20)
import torch
import torch.distributed as distributed

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
alone = pool.all_stats()
assert len(alone) == 1, alone
distributed.init_process_group("gloo")
kept = [torch.empty(1 << 20, dtype=torch.uint8, device=device) for _ in range(rank + 1)]
refused = 0
try:
    torch.empty(100 << 20, dtype=torch.uint8, device=device)
except torch.OutOfMemoryError as error:
    assert f"{64 * (rank + 1)}.00 MiB" in str(error), error
    refused = 1
every = pool.all_stats()
assert torch.cuda.memory_allocated() == (rank + 1) << 20
distributed.barrier()
distributed.destroy_process_group()
if rank == 0:
    found = [(one["allocated_bytes.all.current"], one["num_ooms"]) for one in every]
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def test_each_rank_has_its_limit_and_one_call_tells_of_all(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out.json"
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0",
         "--standalone", str(tmp_path / "program.py"), str(out)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert json.loads(out.read_text()) == [[1 << 20, 1], [2 << 20, 1]]
