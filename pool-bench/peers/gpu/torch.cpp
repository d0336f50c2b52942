// PyTorch's caching allocator, as its own tensors use it: by the current stream.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "peer.hpp"

namespace torch_caching = c10::cuda::CUDACachingAllocator;
using Aggregate = c10::CachingAllocator::StatType;

struct Torch {
  std::vector<c10::cuda::CUDAStream> streams;

  c10::cuda::CUDAStream of(cudaStream_t stream) const {
    return c10::cuda::getStreamFromExternal(stream, 0);
  }
  c10::DataPtr take(size_t bytes, cudaStream_t stream) {
    // The current stream is the thread's; setting it again is one comparison.
    if (c10::cuda::getCurrentCUDAStream(0).stream() != stream)
      c10::cuda::setCurrentCUDAStream(of(stream));
    return torch_caching::get()->allocate(bytes);
  }
  void give(c10::DataPtr block, size_t, cudaStream_t) { block.clear(); }
  void record(c10::DataPtr &block, cudaStream_t stream) {
    torch_caching::recordStream(block, of(stream));
  }
  void *address(const c10::DataPtr &block) { return block.get(); }
  size_t reserved_peak() {
    auto stats = torch_caching::getDeviceStats(0);
    return stats.reserved_bytes[static_cast<size_t>(Aggregate::AGGREGATE)].peak;
  }
  void reset() {
    check(cudaDeviceSynchronize());
    torch_caching::emptyCache();
    torch_caching::resetPeakStats(0);
  }
};

int main() {
  check(cudaSetDevice(0));
  torch_caching::init(1);
  std::vector<cudaStream_t> streams;
  Torch torch;
  for (int i = 0; i < 17; i++) {
    torch.streams.push_back(c10::cuda::getStreamFromPool(false, 0));
    streams.push_back(torch.streams.back().stream());
  }
  Peer<Torch>(torch, streams).serve();
}
