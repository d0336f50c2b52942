// Pools for C++, over bucketpool.h: a counted handle, exceptions, and a resource for RMM and CCCL.
#ifndef BUCKETPOOL_HPP
#define BUCKETPOOL_HPP

#include "bucketpool.h"

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#endif
#if __has_include(<cuda/memory_resource>)
#include <cuda/memory_resource>
#endif

namespace bucketpool {

// What the library refuses.
struct error : std::runtime_error {
    bp_status status;
    error(const char *text, bp_status status) : std::runtime_error(text), status(status) {}
};

#if __has_include(<rmm/error.hpp>)
using out_of_memory = rmm::out_of_memory;
#else
struct out_of_memory : std::bad_alloc {
    std::string text;
    explicit out_of_memory(std::string text) : text(std::move(text)) {}
    const char *what() const noexcept override { return text.c_str(); }
};
#endif

// Throws what a function has refused.
inline void check(bp_status said) {
    if (said == BP_OK) return;
    bp_error details{};
    details.size = sizeof details;
    bp_last_error(&details);
    const char *text = details.text ? details.text : "refused, without a text";
    if (said == BP_OUT_OF_MEMORY) throw out_of_memory(text);
    throw error(text, said);
}

// A pool. Copies are the same pool, which the last one closes; its live blocks stay valid.
class pool {
    const bp_pool *handle;

    explicit pool(const bp_pool *handle) noexcept : handle(handle) {}

  public:
    // A pool of its own. `settings`: TOML, or null. `memory`: "cuda", "cuda-vmm", "cuda-async", "pinned", "host".
    pool(const char *settings, const char *memory, int device = 0) : handle(nullptr) {
        check(bp_pool_new(settings, memory, device, &handle));
    }

    // The process's one pool of a device, which PyTorch, CuPy and others may share.
    static pool of_device(int device, const char *memory = nullptr) {
        const bp_pool *handle = nullptr;
        check(bp_pool_of_device(memory, device, &handle));
        return pool(handle);
    }

    pool(const pool &other) noexcept : handle(bp_pool_clone(other.handle)) {}
    pool(pool &&other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    pool &operator=(pool other) noexcept {
        std::swap(handle, other.handle);
        return *this;
    }
    ~pool() { bp_pool_drop(handle); }

    const bp_pool *get() const noexcept { return handle; }
    bool operator==(const pool &other) const noexcept { return handle == other.handle; }
    bool operator!=(const pool &other) const noexcept { return handle != other.handle; }
};

#if __has_include(<cuda/memory_resource>)
// A resource of device memory, for `rmm::device_async_resource_ref`, `cuda::mr::any_resource` and what takes those.
class resource {
    pool from;

  public:
    explicit resource(pool from) noexcept : from(std::move(from)) {}

    // Usable on the stream. 0 bytes are a null pointer.
    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
        void *at = nullptr;
        check(bp_alloc(from.get(), bytes, alignment, stream.get(), &at));
        return at;
    }

    // The stream, which the caller has ordered behind all uses, has the memory next.
    void deallocate(cuda::stream_ref stream, void *at, std::size_t, std::size_t = 256) noexcept {
        bp_free(from.get(), at, stream.get());
    }

    // Usable on every stream.
    void *allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
        void *at = nullptr;
        check(bp_alloc_sync(from.get(), bytes, alignment, &at));
        return at;
    }

    // All work with the memory has passed, as the caller of a call without a stream promises.
    void deallocate_sync(void *at, std::size_t, std::size_t = 256) noexcept { bp_free_here(from.get(), at); }

    bool operator==(const resource &other) const noexcept { return from == other.from; }
    bool operator!=(const resource &other) const noexcept { return from != other.from; }

    friend void get_property(const resource &, cuda::mr::device_accessible) noexcept {}
};

static_assert(cuda::mr::resource_with<resource, cuda::mr::device_accessible>);
#endif

} // namespace bucketpool
#endif
