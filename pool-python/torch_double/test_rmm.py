"""RMM's C++ over a bucketpool, compiled with RMM's own headers, alone and beside PyTorch."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bucketpool

PACKAGE = Path(bucketpool.__file__).parent
SOURCE = Path(__file__).parent / "rmm_resource.cpp"
# RMM's headers and those that they include, which `cargo xtask torch` has fetched.
HEADERS = Path(os.environ["BUCKETPOOL_RMM"])
INCLUDES = ["librmm/include", "librmm/include/rapids", "nvidia/cu13/include/cccl", "nvidia/cu13/include",
            "rapids_logger/include"]  # fmt: skip
# Where RMM's errors have their types.
LIBRARIES = [HEADERS / "librmm/lib64", HEADERS / "rapids_logger/lib64"]
# Its libraries, behind the stand-ins.
PATHS = {"LD_LIBRARY_PATH": os.pathsep.join([os.environ["LD_LIBRARY_PATH"], *map(str, LIBRARIES)])}


def compiled(folder, name, *options):
    """Compiles the program, or the library, against the runtime of CUDA that programs here load."""
    built = folder / name
    stand_ins = os.environ["LD_LIBRARY_PATH"]
    includes = [f"-I{PACKAGE}", *(f"-I{HEADERS / include}" for include in INCLUDES)]
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
         *("-isystem" + include[2:] for include in includes[1:]), includes[0], str(SOURCE), *options,
         "-o", str(built), *(f"-L{folder}" for folder in LIBRARIES), "-lrmm", "-lrapids_logger",
         f"-L{stand_ins}", "-l:libcudart.so.13", f"-L{PACKAGE}", "-lbucketpool_c", "-ldl",
         f"-Wl,-rpath,{PACKAGE}", "-Wl,--allow-shlib-undefined"],
        check=True,
    )  # fmt: skip
    return built


def test_rmms_references_and_owners_have_a_pool(tmp_path):
    program = compiled(tmp_path, "resource")
    ran = subprocess.run([program], capture_output=True, text=True, env={**os.environ, **PATHS})
    assert (ran.returncode, ran.stdout) == (0, "no hazards\n"), ran.stdout + ran.stderr


@pytest.mark.parametrize("memory", ["cuda", "cuda-vmm", "cuda-async"])
def test_pytorch_rmm_and_c_share_a_pool_and_a_capture(tmp_path, memory):
    library = compiled(tmp_path, "libresource.so", "-shared", "-fPIC")
    program = """
    import ctypes, sys
    from ctypes import byref, c_size_t, c_void_p
    import bucketpool.torch as plug
    from bucketpool._library import library
    plug.enable(policy="pow2", memory=sys.argv[2])
    import torch
    double = ctypes.CDLL("libcuda.so")
    double.cuda_double_calls_wait(False)
    rmm = ctypes.CDLL(sys.argv[1])
    rmm.rmm_allocate.argtypes, rmm.rmm_allocate.restype = [c_size_t, c_void_p], c_void_p
    rmm.rmm_deallocate.argtypes = [c_void_p, c_size_t, c_void_p]
    rmm.rmm_deallocate.restype = None
    kernel = double.cuda_double_kernel
    kernel.argtypes = [c_void_p, c_void_p, c_size_t]
    x = torch.ones(1 << 20, dtype=torch.uint8).to("cuda")
    ours = library()
    pool = ours.pool_of_device(None, 0)

    def allocate(library, bytes, stream):
        if library == "rmm":
            return rmm.rmm_allocate(bytes, stream)
        at = c_void_p()
        ours.call("bp_alloc", pool, bytes, 0, stream, byref(at))
        return at.value

    def free(library, at, bytes, stream):
        if library == "rmm":
            rmm.rmm_deallocate(at, bytes, stream)
        else:
            ours.call("bp_free", pool, at, stream)

    # What one has freed serves the next.
    stream = torch.cuda.current_stream().cuda_stream
    tensor = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    kernel(stream, address, 1 << 22)
    del tensor
    for name in ("rmm", "c"):
        at = allocate(name, 1 << 22, stream)
        assert at == address, name
        kernel(stream, at, 1 << 22)
        free(name, at, 1 << 22, stream)

    graphs = []
    for turn in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
            stream = torch.cuda.current_stream().cuda_stream
            addresses = []
            for name in ("rmm", "c"):
                at = allocate(name, 1 << 19, stream)
                kernel(stream, at, 1 << 19)
                addresses.append(at)
            y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            y.copy_(x)
            scratch = torch.empty(1 << 19, dtype=torch.uint8, device="cuda")
            scratch.zero_()
            addresses.append(scratch.data_ptr())
            del scratch
            for name, at in zip(("rmm", "c"), addresses):
                free(name, at, 1 << 19, stream)
        assert len(set(addresses)) == 3
        graphs.append(graph)
        if turn: # the first result is alive until the second one is there
            assert plug.pool_stats()["misses"] <= misses + 1, "what the first graph has freed"
        misses = plug.pool_stats()["misses"]
    assert plug.pool_stats()["private_bytes"] >= 3 << 19
    beside = [allocate(name, 1 << 19, 0) for name in ("rmm", "c")]
    assert not set(beside) & set(addresses), "nobody gets the memory of graphs"
    for at in beside:
        kernel(0, at, 1 << 19)
    for graph in graphs:
        graph.replay()
    assert y.cpu()[7].item() == 1
    for at, name in zip(beside, ("rmm", "c")):
        free(name, at, 1 << 19, 0)
    del y, graph, graphs
    torch.cuda.synchronize()
    assert plug.pool_stats()["private_bytes"] == 0
    assert double.cuda_double_hazards() == 0
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(library), memory]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **PATHS})
    assert ran.returncode == 0, ran.stdout + ran.stderr
