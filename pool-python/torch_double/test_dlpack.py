"""Arrays of our pools in PyTorch and NumPy, and theirs in ours: lifetimes, contents, and the order of streams."""

import os
import subprocess
import sys
import textwrap

import pytest

BEFORE = """
import ctypes, gc, sys
import numpy as np
import torch
from bucketpool.memory import Array, Imported, MemoryPool, from_dlpack

double = ctypes.CDLL("libcuda.so")
kernel = double.cuda_double_kernel
kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
torch.cuda.init()
torch.empty(1, device="cuda")
double.cuda_double_calls_wait(False)

def live(pool):
    gc.collect()
    return pool.stats()["allocated_bytes"]

def raises(kind, text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")
"""


def run(program, *arguments):
    command = [sys.executable, "-c", BEFORE + textwrap.dedent(program), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("memory", ["cuda", "cuda-vmm", "cuda-async"])
def test_a_tensor_keeps_our_memory_and_is_behind_our_stream(memory):
    run(
        """
        pool = MemoryPool(sys.argv[1])
        ours, theirs = torch.cuda.Stream(), torch.cuda.Stream()
        for turn in range(20):
            array = pool.empty((4, 1024), "float32", ours)
            kernel(ours.cuda_stream, array.data_ptr, array.nbytes)
            with torch.cuda.stream(theirs):
                tensor = torch.from_dlpack(array)
                assert tensor.data_ptr() == array.data_ptr and tensor.shape == (4, 1024)
                assert tensor.dtype == torch.float32 and tensor.device == torch.device("cuda:0")
                tensor.copy_(torch.full((4, 1024), float(turn)))
            del array
            assert live(pool) >= 16384, "the tensor has it"
            with torch.cuda.stream(theirs):
                assert tensor.cpu()[3, 1023].item() == turn
            del tensor
            assert live(pool) == 0
            # Its next user is behind both streams.
            again = pool.empty(4096, "float32")
            kernel(0, again.data_ptr, again.nbytes)
            del again
        torch.cuda.synchronize()
        assert pool.stats()["misses"] == 1 and double.cuda_double_hazards() == 0
        """,
        memory,
    )


def test_the_interface_of_cuda_arrays_names_our_stream():
    run(
        """
        pool = MemoryPool("cuda")
        ours = torch.cuda.Stream()
        array = pool.empty(1024, np.float32, ours)
        kernel(ours.cuda_stream, array.data_ptr, array.nbytes)
        told = array.__cuda_array_interface__
        assert (told["version"], told["stream"], told["typestr"]) == (3, ours.cuda_stream, "<f4")
        tensor = torch.as_tensor(array, device="cuda")
        assert tensor.data_ptr() == array.data_ptr
        # PyTorch looks at no stream of it: its user orders them, as here.
        torch.cuda.current_stream().wait_stream(ours)
        array.record_stream(torch.cuda.current_stream())
        tensor.fill_(1)
        tensor.copy_(torch.full((1024,), 3.0))
        del array
        assert live(pool) == 4096 and tensor.cpu()[1000].item() == 3
        del tensor
        assert live(pool) == 0
        torch.cuda.synchronize()
        assert double.cuda_double_hazards() == 0
        raises(AttributeError, "not a device's", lambda: MemoryPool("host").empty(3).__cuda_array_interface__)
        """
    )


def test_a_consumer_that_asks_for_no_order_is_a_hazard():
    """The double sees what the first test is about."""
    run(
        """
        pool = MemoryPool("cuda")
        ours, theirs = torch.cuda.Stream(), torch.cuda.Stream()
        array = pool.empty(1024, "float32", ours)
        kernel(ours.cuda_stream, array.data_ptr, array.nbytes)
        capsule = array.__dlpack__(stream=-1, max_version=(1, 1))
        kernel(theirs.cuda_stream, array.data_ptr, array.nbytes)
        torch.cuda.synchronize()
        assert double.cuda_double_hazards() == 1
        del capsule, array
        assert live(pool) == 0, "a capsule that nobody takes frees its part"
        """
    )


def test_arrays_of_the_host_are_numpys_without_a_copy():
    run(
        """
        for memory in ("host", "pinned"):
            pool = MemoryPool(memory)
            array = pool.empty((3, 5), "int64")
            made = np.asarray(array)
            made[:] = np.arange(15).reshape(3, 5)
            assert made.ctypes.data == array.data_ptr
            if memory == "host":
                same = np.from_dlpack(array)
                assert same[2, 4] == 14
                tensor = torch.from_dlpack(array)
                assert tensor[1, 1].item() == 6 and not tensor.is_pinned()
                del same, tensor
            # Page-locked memory goes through the device's copies.
            if memory == "pinned":
                device = MemoryPool("cuda").empty((3, 5), "int64")
                tensor = torch.from_dlpack(device)
                tensor.copy_(torch.from_numpy(made))
                assert tensor.cpu()[2, 3].item() == 13
                del tensor, device
            del array
            assert live(pool) >= 120
            del made
            assert live(pool) == 0
        assert double.cuda_double_hazards() == 0
        """
    )


def test_their_arrays_are_taken_and_given_back():
    run(
        """
        side = torch.cuda.Stream()
        tensor = torch.arange(24, dtype=torch.int32).to("cuda").reshape(4, 6)
        taken = from_dlpack(tensor, side)
        assert taken.data_ptr == tensor.data_ptr() and taken.shape == (4, 6) and taken.device == (2, 0)
        assert taken.element == (0, 32, 1) and taken.strides == (6, 1)
        kernel(side.cuda_stream, taken.data_ptr, 96)
        row = from_dlpack(tensor[2])
        assert row.data_ptr == tensor.data_ptr() + 48
        at = torch.cuda.memory_allocated()
        del tensor
        gc.collect()
        assert torch.cuda.memory_allocated() == at
        del taken, row
        gc.collect()
        assert torch.cuda.memory_allocated() < at
        array = np.arange(10.0)
        taken = from_dlpack(array)
        assert taken.data_ptr == array.ctypes.data and taken.device == (1, 0)
        torch.cuda.synchronize()
        assert double.cuda_double_hazards() == 0
        """
    )


def test_bad_input_is_refused_and_loses_nothing():
    run(
        """
        pool = MemoryPool("cuda", limit="1M")
        array = pool.empty((2, 0, 3), "float16")
        assert array.data_ptr == 0 and torch.from_dlpack(array).shape == (2, 0, 3)
        array = pool.empty(np.int64(7), torch.float32)
        assert array.shape == (7,) and pool.empty((np.int32(2), 3)).shape == (2, 3)
        raises(TypeError, "dtype float8", pool.empty, 3, "float8")
        raises(ValueError, "no negative axis", pool.empty, (3, -1))
        raises(TypeError, "", pool.empty, 2.5)
        raises(ValueError, "stream -1", pool.empty, 3, "int8", -1)
        raises(TypeError, "stream 'one'", pool.empty, 3, "int8", "one")
        raises(MemoryError, "limit", pool.empty, 1 << 22, "int8")
        raises(ValueError, "stream 0", array.__dlpack__, stream=0)
        raises(BufferError, "copy=True", array.__dlpack__, copy=True)
        raises(BufferError, "dl_device", array.__dlpack__, dl_device=(1, 0))
        raises(ValueError, "memory of the host", MemoryPool("host").empty(3).__dlpack__, stream=7)
        raises(RuntimeError, "disk", MemoryPool, "disk")
        raises(RuntimeError, "cuDevice", MemoryPool, "cuda", 9)
        raises(TypeError, "shared pool", MemoryPool, shared=True, limit="1M")
        capsule = array.__dlpack__(max_version=(1, 0))
        taken = Imported(capsule)
        raises(BufferError, "was taken already", Imported, capsule)
        raises(BufferError, "no DLPack tensor", Imported, object())
        old = Imported(array.__dlpack__())
        assert old.data_ptr == taken.data_ptr == array.data_ptr
        many = pool.empty((1,) * 70, "int8")
        raises(RuntimeError, "70 axes", many.__dlpack__)
        del taken, old, array, capsule, many
        assert live(pool) == 0
        """
    )


def test_the_object_of_a_stream_lives_as_long_as_its_array():
    run(
        """
        import weakref
        class Stream:
            def __init__(self):
                self.own = torch.cuda.Stream()
                self.cuda_stream = self.own.cuda_stream
        pool = MemoryPool("cuda")
        stream = Stream()
        kept = weakref.ref(stream)
        array = pool.empty(100, "float32", stream)
        del stream
        gc.collect()
        assert kept() is not None
        del array
        gc.collect()
        assert kept() is None and live(pool) == 0
        """
    )
