"""PyTorch's tensors in a bucketpool: each test is a program, since an allocator is for a whole process."""

import os
import subprocess
import sys
import textwrap

import pytest

BEFORE = """
import ctypes, gc, sys
import bucketpool.torch as pool

double = ctypes.CDLL("libcuda.so")

def hazards():
    double.cuda_double_tell_hazards()
    return double.cuda_double_hazards()
"""

POLICIES = ["pow2", "arena", "arena:torch"]


def run(program, *arguments, status=0, **variables):
    """Runs a program, and returns what it has printed."""
    source = BEFORE + textwrap.dedent(program)
    environment = {**os.environ, **variables}
    command = [sys.executable, "-W", "error::UserWarning:bucketpool", "-c", source, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == status, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    assert "(stub)" not in ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("memory", ["cuda", "cuda-vmm", "cuda-async"])
@pytest.mark.parametrize("policy", POLICIES)
def test_tensors_have_their_contents_on_several_streams(policy, memory):
    program = """
    pool.enable(policy=sys.argv[1], memory=sys.argv[2])
    import torch
    double.cuda_double_calls_wait(False)
    side = torch.cuda.Stream()
    for turn in range(200):
        a = torch.empty(1 << 12, device="cuda")
        a.copy_(torch.full((1 << 12,), float(turn)))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = torch.empty(1 << 12, device="cuda")
            b.copy_(a)
            a.record_stream(side)
        del a
        c = torch.empty(1 << 12, device="cuda")
        c.copy_(torch.zeros(1 << 12))
        if turn % 7 == 0:
            side.synchronize()
        with torch.cuda.stream(side):
            assert b.cpu()[5].item() == turn
        del b, c
    figures = pool.pool_stats()
    assert figures["misses"] < 30 < figures["hits"], figures
    torch.cuda.synchronize()
    assert hazards() == 0
    torch.cuda.empty_cache()
    assert pool.pool_stats()["reserved_bytes"] == 0
    e = torch.empty(0, device="cuda")
    assert e.data_ptr() == 0
    """
    run(program, policy, memory)


def test_a_stream_that_nobody_records_is_a_hazard():
    """The double sees what the test above is about."""
    program = """
    pool.enable(policy="pow2")
    import torch
    double.cuda_double_calls_wait(False)
    side = torch.cuda.Stream()
    a = torch.empty(1 << 12, device="cuda")
    a.copy_(torch.ones(1 << 12))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        b = torch.empty(1 << 12, device="cuda")
        b.copy_(a)
    del a
    c = torch.empty(1 << 12, device="cuda")
    c.copy_(torch.zeros(1 << 12))
    torch.cuda.synchronize()
    assert hazards() == 1
    """
    run(program)


@pytest.mark.parametrize("memory", ["cuda", "cuda-vmm", "cuda-async"])
def test_graphs_share_memory_and_go_while_a_replay_runs(memory):
    program = """
    pool.enable(policy="pow2", memory=sys.argv[1])
    import torch
    double.cuda_double_calls_wait(False)
    x = torch.ones(256).to("cuda")
    for turn in range(3):
        g, g2 = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = torch.empty(256, device="cuda")
            y.copy_(x)
            scratch = torch.empty(512, device="cuda")
            scratch.zero_()
            freed = scratch.data_ptr()
            del scratch
        with torch.cuda.graph(g2, pool=g.pool()):
            v = torch.empty(512, device="cuda")
            v.zero_()
        assert v.data_ptr() == freed, "the second graph has what the first one has freed"
        s1, s2 = torch.cuda.Stream(), torch.cuda.Stream()
        x.copy_(torch.full((256,), 5.0 + turn))
        s1.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s1):
            g.replay()
            g2.replay()
            assert y.cpu()[0].item() == 5 + turn
        if turn == 2:
            torch.cuda.synchronize()
            del v  # before its graph
        with torch.cuda.stream(s1):
            g.replay()
        outside = torch.empty(256, device="cuda")
        assert outside.data_ptr() not in (y.data_ptr(), freed)
        del outside
        del g, y, g2
        if turn < 2:
            del v
        gc.collect()
        with torch.cuda.stream(s2):
            s2.wait_stream(torch.cuda.default_stream())
            several = [torch.empty(256, device="cuda") for _ in range(4)]
            for u in several:
                u.zero_()
        torch.cuda.synchronize()
        assert hazards() == 0
        assert pool.pool_stats()["private_bytes"] == 0
        del several, u
    """
    run(program, memory)


def test_out_of_memory_is_pytorchs_error_and_can_be_retried():
    program = """
    pool.enable(policy="pow2", limit="64M")
    import torch
    kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    for turn in range(20):
        try:
            torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "limit" in str(error) and "64.00 MiB" in str(error), error
        else:
            raise AssertionError("no error")
    del kept
    again = torch.arange(8, dtype=torch.uint8).to("cuda")
    assert again.cpu().tolist() == list(range(8))
    assert torch.cuda.memory_stats()["num_ooms"] == 20
    try:
        torch.empty(2 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "limit" in str(error)
    """
    run(program)


def test_pytorchs_own_figures_are_the_pools():
    program = """
    pool.enable()
    import torch
    a = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 3 << 20 == pool.stats()["allocated_bytes.all.current"]
    assert torch.cuda.memory_reserved() >= 3 << 20
    b = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del b
    assert torch.cuda.max_memory_allocated() == 4 << 20
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 << 20
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == 3 << 20
    assert "Allocated memory" in torch.cuda.memory_summary()
    segments = torch.cuda.memory_snapshot()
    held = [block["size"] for segment in segments for block in segment["blocks"]
            if block["state"] == "active_allocated"]
    assert held == [3 << 20], segments
    assert torch.cuda.get_per_process_memory_fraction() == 1
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    try:
        torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        raise AssertionError("no error")
    except torch.OutOfMemoryError as error:
        assert "256.00 MiB" in str(error), error
    # A share does not lift a limit, and may be nothing.
    torch.cuda.set_per_process_memory_fraction(0.0)
    try:
        torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        raise AssertionError("no error")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.set_per_process_memory_fraction(1.0)
    # A device that was not used has figures, and no context for them.
    contexts = double.cuda_double_count(b"cuDevicePrimaryCtxRetain")
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.current"] == 0
    assert torch.cuda.memory_stats(1).keys() == torch.cuda.memory_stats(0).keys()
    torch.cuda.reset_peak_memory_stats(1)
    assert len(torch.cuda.memory_snapshot()) == 1
    assert double.cuda_double_count(b"cuDevicePrimaryCtxRetain") == contexts
    assert torch.accelerator.memory_allocated(0) == 3 << 20 == torch.accelerator.max_memory_allocated(0)
    torch.accelerator.reset_peak_memory_stats(0)
    torch.accelerator.reset_accumulated_memory_stats(0)
    assert torch.accelerator.memory_stats(0)["allocation.all.allocated"] == 0
    other = torch.empty(100, device="cuda:1")
    assert torch.cuda.memory_allocated(1) >= 400 and torch.cuda.memory_allocated("cuda:0") == 3 << 20
    pool.report(sys.argv[1], 1)
    assert "memory cuda" in open(sys.argv[1]).read()
    assert len(pool.memory_map()["segments"]) > 0
    pool.empty_cache()
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run(program, os.path.join(folder, "report.txt"))


def test_what_a_plug_cannot_do_says_so():
    program = """
    pool.enable()
    import torch
    torch.empty(10, device="cuda")
    for call in (torch.cuda.MemPool, torch.cuda.memory._record_memory_history,
                 lambda: torch.empty(4, device="cuda").untyped_storage()._share_cuda_()):
        try:
            call()
            raise AssertionError(call)
        except RuntimeError:
            pass
    try:
        pool.upstream()
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "after enable()" in str(error)
    pool.enable()
    try:
        pool.enable(policy="pow2")
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "other settings" in str(error)
    """
    run(program)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import torch; torch.version.cuda = None; pool.enable()", "was built without CUDA"),
        ("import torch; torch.empty(1, device='cuda'); pool.enable()", "has used CUDA already"),
        ("pool.enable(policy='none')", "none"),
        ("pool.enable(memory='host')", 'memory "host"; expected "cuda"'),
        ("pool.enable(limit='64X')", "64X"),
        ("pool.enable(policy='pow2', settings='policy=\"arena\"')", "beside policy or limit"),
    ],
)
def test_bad_input_is_one_clear_line(program, text):
    last = run(program, status=1).strip().splitlines()[-1]
    assert text in last, last


def test_a_training_whose_backward_has_its_own_thread():
    program = """
    pool.enable(policy=sys.argv[1])
    import torch
    double.cuda_double_calls_wait(False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to("cuda")
    best = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(20):
        x = torch.empty(8 * (1 + step % 5), 64, device="cuda")
        loss = torch.nn.functional.mse_loss(model(x), x)
        loss.backward()
        best.step()
        best.zero_grad(set_to_none=True)
        del x, loss
    figures = pool.pool_stats()
    assert figures["hits"] > 5 * figures["misses"], figures
    torch.cuda.synchronize()
    assert hazards() == 0
    """
    for policy in POLICIES:
        run(program, policy)


def test_workers_of_a_loader_are_forked_and_end():
    program = """
    pool.enable()
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return torch.full((8,), float(index))

    before = torch.ones(100, device="cuda")
    total = 0.0
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2,
                                             multiprocessing_context="fork"):
        total += batch.to("cuda").cpu().sum().item()
    assert total == 8 * sum(range(64)), total
    del before
    torch.cuda.synchronize()
    assert hazards() == 0
    """
    run(program)


def test_a_mempool_of_pytorchs_own_allocator_has_our_segments():
    program = """
    import torch
    given = pool.upstream()
    double.cuda_double_calls_wait(False)
    with torch.cuda.use_mem_pool(given):
        a = torch.arange(100, dtype=torch.uint8).to("cuda")
        b = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    reserved = pool.pool_stats()["allocated_bytes"]
    assert reserved >= 22 << 20, reserved
    assert a.cpu().tolist() == list(range(100))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        b.zero_()
    del a, b, given
    gc.collect()
    torch.cuda.empty_cache()
    assert pool.pool_stats()["allocated_bytes"] == 0
    torch.cuda.synchronize()
    assert hazards() == 0
    """
    run(program, "")


def test_without_a_compiler_the_wheels_part_throws(tmp_path):
    import bucketpool

    package = os.path.dirname(bucketpool.__file__)
    shipped = os.path.join(package, "libbucketpool_torch.so")
    if not os.path.exists(shipped):
        pytest.fail("the package has no libbucketpool_torch.so; install the wheel")
    program = """
    import warnings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pool.enable(limit="1M")
    assert "RuntimeError" in str(said[-1].message), said
    import torch
    try:
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        raise AssertionError("no error")
    except torch.OutOfMemoryError:
        raise AssertionError("a compiler was found")
    except RuntimeError as error:
        assert "limit" in str(error), error
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = torch.zeros(256, device="cuda")
    g.replay()
    """
    run(program, PATH=str(tmp_path))


def test_the_second_graph_of_a_memory_takes_a_side_stream_in_too():
    program = """
    pool.enable(policy="pow2")
    import torch
    double.cuda_double_calls_wait(False)
    side, graphs = torch.cuda.Stream(), []
    for turn in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
            own = torch.empty(1 << 10, device="cuda")
            own.zero_()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                beside = torch.empty(1 << 10, device="cuda")
                beside.zero_()
            torch.cuda.current_stream().wait_stream(side)
            del own, beside
        graphs.append(graph)
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert hazards() == 0
    """
    run(program)


def test_a_graph_without_a_wait_before_it_takes_nothing_that_is_used():
    program = """
    pool.enable(policy="pow2")
    import torch
    double.cuda_double_calls_wait(False)
    on, theirs = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(on):
        before = torch.empty(1 << 10, device="cuda")
        before.zero_()
        del before
        graph.capture_begin()
        a = torch.empty(1 << 10, device="cuda")
        a.zero_()
        graph.capture_end()
    with torch.cuda.stream(theirs):
        graph.replay() # ordered behind nothing
    torch.cuda.synchronize()
    assert hazards() == 0
    """
    run(program)


def test_a_refusal_that_is_not_about_memory_is_another_error():
    program = """
    pool.enable(policy="pow2")
    import torch
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # A capture that nobody has told the pool of.
        begin = double.cuStreamBeginCapture_v2
        begin.argtypes = [ctypes.c_void_p, ctypes.c_int]
        assert begin(stream.cuda_stream, 2) == 0
        try:
            torch.empty(1 << 20, device="cuda")
            raise AssertionError("no error")
        except torch.OutOfMemoryError as error:
            raise AssertionError(error)
        except RuntimeError as error:
            assert "captures" in str(error), error
    """
    run(program)


def cached(tmp_path):
    return list((tmp_path / "bucketpool").glob("*.so"))


ENABLE = """
import warnings
warnings.simplefilter("error")
pool.enable(limit="64M")
import torch
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    raise AssertionError("no error")
except torch.OutOfMemoryError as error:
    print("refused")
"""


def test_what_was_compiled_is_kept_and_made_anew_where_it_is_damaged(tmp_path):
    # A compiler with arguments.
    variables = {"XDG_CACHE_HOME": str(tmp_path), "CXX": "g++ -DANY=1"}
    assert run(ENABLE, **variables) == "refused\n"
    (kept,) = cached(tmp_path)
    size, time = kept.stat().st_size, kept.stat().st_mtime_ns
    assert run(ENABLE, **variables) == "refused\n"
    assert cached(tmp_path) == [kept] and kept.stat().st_mtime_ns == time
    kept.write_bytes(b"damaged")
    assert run(ENABLE, **variables) == "refused\n"
    assert kept.stat().st_size == size


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null/none"])
def test_without_a_place_to_keep_it_it_is_compiled_each_time(place):
    assert run(ENABLE, XDG_CACHE_HOME=place) == "refused\n"
