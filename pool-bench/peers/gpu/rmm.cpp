// RMM's resources: `rmm pool` or `rmm async`.
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "peer.hpp"

#include <optional>

using Pool = rmm::mr::pool_memory_resource;
using Async = rmm::mr::cuda_async_memory_resource;

// An initial size of 0: the pool grows by what is asked for, or as much again as it has.
inline void make(std::optional<Pool> &pool) { pool.emplace(rmm::mr::cuda_memory_resource{}, 0); }
inline void make(std::optional<Async> &async) { async.emplace(); }

inline size_t peak(std::optional<Pool> &pool) { return pool->pool_size(); }  // it never gives back
inline size_t peak(std::optional<Async> &async) {
  cuuint64_t peak = 0;
  check(cudaMemPoolGetAttribute(async->pool_handle(), cudaMemPoolAttrReservedMemHigh, &peak));
  return peak;
}

template <class Resource>
struct Rmm {
  std::optional<Resource> resource;
  cudaStream_t home;
  cudaEvent_t event;

  void *take(size_t bytes, cudaStream_t stream) {
    return resource->allocate(cuda::stream_ref{stream}, bytes, 256);
  }
  void give(void *block, size_t bytes, cudaStream_t stream) {
    resource->deallocate(cuda::stream_ref{stream}, block, bytes, 256);
  }
  // RMM knows nothing of other streams; this is what its users do instead.
  void record(void *, cudaStream_t other) {
    check(cudaEventRecord(event, other));
    check(cudaStreamWaitEvent(home, event, 0));
  }
  void *address(void *block) { return block; }
  size_t reserved_peak() { return peak(resource); }
  // A new resource: neither can begin its peak again.
  void reset() {
    check(cudaDeviceSynchronize());
    make(resource);
  }
};

template <class Resource>
void serve() {
  std::vector<cudaStream_t> streams(17);
  for (auto &stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Rmm<Resource> rmm;
  rmm.home = streams[0];
  check(cudaEventCreateWithFlags(&rmm.event, cudaEventDisableTiming));
  make(rmm.resource);
  Peer<Rmm<Resource>>(rmm, streams).serve();
}

int main(int count, char **arguments) {
  check(cudaSetDevice(0));
  if (count > 1 && std::string(arguments[1]) == "async")
    serve<Async>();
  else
    serve<Pool>();
}
