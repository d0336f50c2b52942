// RMM's resources: `rmm pool` or `rmm async`.
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "peer.hpp"

template <class Resource>
struct Rmm {
  Resource &resource;
  cudaEvent_t event;

  void *take(size_t bytes, cudaStream_t stream) {
    return resource.allocate(cuda::stream_ref{stream}, bytes, 256);
  }
  void give(void *block, size_t bytes, cudaStream_t stream) {
    resource.deallocate(cuda::stream_ref{stream}, block, bytes, 256);
  }
  // RMM knows nothing of other streams; this is what its users do instead.
  void record(void *, cudaStream_t other) {
    check(cudaEventRecord(event, other));
    check(cudaStreamWaitEvent(home, event, 0));
  }
  void *address(void *block) { return block; }
  size_t reserved_peak();
  void reset() { check(cudaDeviceSynchronize()); }
  cudaStream_t home;
};

template <>
size_t Rmm<rmm::mr::pool_memory_resource>::reserved_peak() {
  return resource.pool_size();  // it never gives back
}
template <>
size_t Rmm<rmm::mr::cuda_async_memory_resource>::reserved_peak() {
  cuuint64_t peak = 0;
  check(cudaMemPoolGetAttribute(resource.pool_handle(), cudaMemPoolAttrReservedMemHigh, &peak));
  return peak;
}

template <class Resource>
void serve(Resource &resource) {
  std::vector<cudaStream_t> streams(17);
  for (auto &stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  Rmm<Resource> rmm{resource, event, streams[0]};
  Peer<Rmm<Resource>>(rmm, streams).serve();
}

int main(int count, char **arguments) {
  check(cudaSetDevice(0));
  if (count > 1 && std::string(arguments[1]) == "async") {
    rmm::mr::cuda_async_memory_resource async;
    serve(async);
  } else {
    rmm::mr::pool_memory_resource pool{rmm::mr::cuda_memory_resource{}, 0};
    serve(pool);
  }
}
