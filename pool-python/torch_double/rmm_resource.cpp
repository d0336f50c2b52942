// RMM's references and owners over a bucketpool, compiled with RMM's own headers: a program on the double, and a
// library for a program that runs PyTorch too.
#include <bucketpool.hpp>

#include <rmm/resource_ref.hpp>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <vector>

#define CHECK(what)                                                                                  \
    if (!(what)) {                                                                                   \
        std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                              \
        return 1;                                                                                    \
    }

// For a program that has streams of its own: a block of RMM's resource, and its free.
extern "C" void *rmm_allocate(std::size_t bytes, void *stream) {
    bucketpool::resource mr{bucketpool::pool::of_device(0)};
    rmm::device_async_resource_ref ref{mr};
    return ref.allocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, bytes, 256);
}
extern "C" void rmm_deallocate(void *at, std::size_t bytes, void *stream) {
    bucketpool::resource mr{bucketpool::pool::of_device(0)};
    rmm::device_async_resource_ref ref{mr};
    ref.deallocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, at, bytes, 256);
}

int main() {
    bucketpool::resource mr{bucketpool::pool("policy = 'pow2'\nreserved_limit = '1M'", "cuda")};
    bucketpool::resource other{bucketpool::pool::of_device(0)}, same{bucketpool::pool::of_device(0)};
    CHECK(other == same && mr != other);
    cudaStream_t first, second;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    auto *calls_wait = reinterpret_cast<void (*)(bool)>(dlsym(RTLD_DEFAULT, "cuda_double_calls_wait"));
    auto *hazards = reinterpret_cast<std::size_t (*)()>(dlsym(RTLD_DEFAULT, "cuda_double_hazards"));
    CHECK(calls_wait && hazards);
    calls_wait(false);

    rmm::device_async_resource_ref ref{mr};
    cuda::mr::any_resource<cuda::mr::device_accessible> owned{mr};
    cuda::stream_ref s1{first}, s2{second};
    std::vector<char> in(5000, 7), out(5000, 0);
    for (int turn = 0; turn < 20; ++turn) {
        void *a = ref.allocate(s1, 5000, 256), *b = owned.allocate(s1, 9000, 256);
        CHECK(cudaMemcpyAsync(a, in.data(), 5000, cudaMemcpyHostToDevice, first) == cudaSuccess);
        CHECK(cudaMemcpyAsync(b, a, 5000, cudaMemcpyDeviceToDevice, first) == cudaSuccess);
        // Freed on another stream than it was allocated on, which the program has ordered.
        CHECK(cudaEventRecord(event, first) == cudaSuccess && cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
        CHECK(cudaMemcpyAsync(out.data(), b, 5000, cudaMemcpyDeviceToHost, second) == cudaSuccess);
        owned.deallocate(s2, b, 9000, 256);
        ref.deallocate(s1, a, 5000, 256);
        CHECK(cudaStreamSynchronize(second) == cudaSuccess && out == in);
        in.assign(5000, static_cast<char>(turn));
    }
    CHECK(ref.allocate(s1, 0, 256) == nullptr);
    ref.deallocate(s1, nullptr, 0, 256);
    void *anywhere = ref.allocate_sync(5000, 256);
    ref.deallocate_sync(anywhere, 5000, 256);
    int caught = 0;
    try {
        (void)ref.allocate(s1, std::size_t{1} << 40, 256);
    } catch (const rmm::out_of_memory &error) {
        caught += std::string(error.what()).find("limit") != std::string::npos;
    }
    try {
        (void)ref.allocate(s1, 10, 3);
    } catch (const bucketpool::error &error) {
        caught += error.status == BP_INVALID;
    }
    try {
        bucketpool::pool none(nullptr, "disk");
    } catch (const bucketpool::error &) {
        caught += 1;
    }
    CHECK(caught == 3);
    bp_figures figures{};
    figures.size = sizeof figures;
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    std::puts(hazards() == 0 ? "no hazards" : "hazards");
    return hazards() != 0;
}
