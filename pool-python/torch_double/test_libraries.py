"""CuPy's and RMM's Python over our pools, with stand-ins for both: their wheels want a GPU.

The stand-ins have the signatures of CuPy 14 (`cupy.cuda.memory.UnownedMemory`, `MemoryPointer`,
`set_allocator`) and RMM 26.10 (`rmm.mr.CallbackMemoryResource`, `set_per_device_resource`).
"""

import subprocess
import sys
import textwrap

BEFORE = """
import ctypes, gc, sys, types
import bucketpool.torch as plug
plug.enable(policy="pow2", limit="64M")
import torch

double = ctypes.CDLL("libcuda.so")
double.cuda_double_calls_wait(False)
kernel = double.cuda_double_kernel
kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
current = [torch.cuda.Stream()]
torch.empty(1, device="cuda")

# CuPy
cupy = types.ModuleType("cupy")
class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id
class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset
class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes")
allocators = []
class Stream:
    ptr = property(lambda self: current[0].cuda_stream)
cupy.cuda = types.SimpleNamespace(
    memory=types.SimpleNamespace(UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
                                 OutOfMemoryError=OutOfMemoryError),
    runtime=types.SimpleNamespace(getDevice=lambda: 0),
    get_current_stream=Stream, set_allocator=allocators.append)
class Array:
    def __init__(self, bytes):
        self.data = allocators[-1](bytes)
sys.modules["cupy"] = cupy

# RMM
rmm = types.ModuleType("rmm")
class CallbackMemoryResource:
    def __init__(self, allocate_func, deallocate_func):
        self.allocate_func, self.deallocate_func = allocate_func, deallocate_func
resources = {}
rmm.mr = types.SimpleNamespace(CallbackMemoryResource=CallbackMemoryResource,
                               set_per_device_resource=resources.__setitem__)
sys.modules["rmm"] = rmm
"""


def run(program):
    command = [sys.executable, "-c", BEFORE + textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_cupys_arrays_are_in_the_pool_of_pytorch():
    run(
        """
        import bucketpool.cupy as plugged
        plugged.enable()
        on = current[0].cuda_stream
        with torch.cuda.stream(current[0]):
            tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            kernel(on, tensor.data_ptr(), 1 << 20)
            address = tensor.data_ptr()
            del tensor
        array = Array(1 << 20)
        assert array.data.ptr == address, "one pool"
        kernel(on, array.data.ptr, 1 << 20)
        # Another stream uses it until its end.
        other = torch.cuda.Stream()
        other.wait_stream(current[0])
        plugged.record_stream(array, other)
        kernel(other.cuda_stream, array.data.ptr, 1 << 20)
        del array
        gc.collect()
        again = Array(1 << 20)
        kernel(on, again.data.ptr, 1 << 20)
        torch.cuda.synchronize()
        assert double.cuda_double_hazards() == 0
        none = Array(0)
        assert none.data.ptr == 0
        plugged.record_stream(none, other)
        try:
            Array(1 << 30)
            raise AssertionError("no error")
        except OutOfMemoryError as error:
            assert "1,073,741,824" in str(error) and "limit" in str(error.__cause__)
        elsewhere = types.SimpleNamespace(data=MemoryPointer(UnownedMemory(4096, 8, None), 0))
        try:
            plugged.record_stream(elsewhere, other)
            raise AssertionError("no error")
        except ValueError as error:
            assert "enable()" in str(error)
        del again
        gc.collect()
        assert plug.stats()["allocated_bytes.all.current"] == 0
        """
    )


def test_rmms_callbacks_are_in_the_pool_of_pytorch():
    run(
        """
        import bucketpool.rmm as plugged
        resource = plugged.enable()
        assert resources == {0: resource}
        class Theirs:
            def __cuda_stream__(self):
                return (0, current[0].cuda_stream)
        on = current[0].cuda_stream
        with torch.cuda.stream(current[0]):
            tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            kernel(on, tensor.data_ptr(), 1 << 20)
            address = tensor.data_ptr()
            del tensor
        for stream in (Theirs(), current[0].cuda_stream):
            at = resource.allocate_func(1 << 20, stream)
            assert at == address, "one pool"
            kernel(on, at, 1 << 20)
            resource.deallocate_func(at, 1 << 20, stream)
        assert resource.allocate_func(0, Theirs()) == 0
        try:
            resource.allocate_func(1 << 30, Theirs())
            raise AssertionError("no error")
        except MemoryError as error:
            assert "limit" in str(error)
        torch.cuda.synchronize()
        assert double.cuda_double_hazards() == 0
        """
    )


def test_the_functions_with_cupys_signatures_are_in_the_pool_of_pytorch():
    """For `cupy.cuda.CFunctionAllocator(param, malloc, free, owner)`, whose functions are C's."""
    run(
        """
        from bucketpool._library import library
        c = library().c
        c.bp_cupy_malloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        c.bp_cupy_malloc.restype = ctypes.c_void_p
        c.bp_cupy_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        before = plug.pool_stats()["allocations"]
        for device in (0, 1):
            at = c.bp_cupy_malloc(None, 1 << 20, device)
            assert at
            assert (device == 0) == (plug.stats(0)["allocated_bytes.all.current"] == 1 << 20)
            assert (device == 1) == (plug.stats(1)["allocated_bytes.all.current"] == 1 << 20)
            c.bp_cupy_free(None, at, device)
        assert plug.pool_stats()["allocations"] == before + 1
        """
    )
