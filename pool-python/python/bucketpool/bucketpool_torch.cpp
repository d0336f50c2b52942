// The C++ part of the plug for PyTorch: what Rust can neither throw nor call.
//
// With BUCKETPOOL_TORCH defined it is compiled against PyTorch's headers and throws torch.OutOfMemoryError,
// else std::runtime_error. It finds the functions of bucketpool.h in libbucketpool_c.so, which is loaded before it.
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <utility>
#ifdef BUCKETPOOL_TORCH
#include <c10/util/Exception.h>
#endif

struct CUstream_st;
using Filter = std::function<bool(CUstream_st *)>;

extern "C" {
void bp_torch_on_oom(void (*throws)(const char *, int));
void bp_torch_begin(int device, uint64_t a, uint64_t b, int (*filter)(void *, void *), void *context,
                    void (*done)(void *));
}

[[noreturn]] static void refuse(const char *text, int is_memory) {
#ifdef BUCKETPOOL_TORCH
    if (is_memory) C10_THROW_ERROR(OutOfMemoryError, text);
#endif
    throw std::runtime_error(text);
}

// Called from Rust, through which nothing is thrown. A stream that the filter cannot tell of is in no capture: its
// request is refused, if it is in one.
static int holds(void *filter, void *stream) {
    try {
        return (*static_cast<Filter *>(filter))(static_cast<CUstream_st *>(stream));
    } catch (...) {
        return 0;
    }
}
static void drop(void *filter) { delete static_cast<Filter *>(filter); }

#define SHOWN extern "C" __attribute__((visibility("default")))

// Has refusals thrown.
SHOWN void bp_torch_throws() { bp_torch_on_oom(refuse); }

// PyTorch's hook for the begin of a capture: the device, the id of the graph's memory, and whether a stream is in it.
SHOWN void bp_torch_begin_filtered(int device, std::pair<unsigned long long, unsigned long long> id, Filter filter) {
    void *context = filter ? new Filter(std::move(filter)) : nullptr;
    bp_torch_begin(device, id.first, id.second, context ? holds : nullptr, context, context ? drop : nullptr);
}
