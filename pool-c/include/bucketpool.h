// Memory pools for C and C++, from libbucketpool_c.so. Written by `BLESS=1 cargo test -p pool-c --test header`.


#ifndef BUCKETPOOL_H
#define BUCKETPOOL_H

#include <stddef.h>
#include <stdint.h>
// What bp_abi() returns where the library goes with this header.
#define BP_ABI 1


// What a function says. `bp_last_error` says more.
typedef enum bp_status {
  // Done.
  BP_OK = 0,
  // The device or a limit has too little memory.
  BP_OUT_OF_MEMORY = 1,
  // An argument is none that the function takes.
  BP_INVALID = 2,
  // No block of the pool has this address, or no id is known.
  BP_UNKNOWN = 3,
  // A stream of another device, or the default stream of another thread.
  BP_FOREIGN = 4,
  // It would break a capture, or wait for work that was not submitted.
  BP_NOT_SUBMITTED = 5,
  // The device, or this build, cannot do it.
  BP_UNSUPPORTED = 6,
  // The device is lost.
  BP_LOST = 7,
  // This process is a forked child: nothing was done.
  BP_FORKED = 8,
  // The pool has noticed a fault of its own, or a call has panicked: report it.
  BP_BROKEN = 9,
  // Another refusal; the text says which.
  BP_OTHER = 10,
} bp_status;

// A pool, as C has it. `bp_pool_clone` and `bp_pool_drop` count its owners.
typedef struct bp_pool bp_pool;

// The last error of a thread.
typedef struct bp_error {
  // `sizeof` of this struct, which the caller sets.
  size_t size;
  // The status that the function returned.
  enum bp_status status;
  // The driver's own code, or 0.
  int64_t driver_code;
  // Why memory was refused: "Limit", "Rounding", "Fragmentation", .., or "".
  const char *verdict;
  // The error in words. Both texts are the thread's, until its next error.
  const char *text;
} bp_error;

// A stream: 0 and 1 the legacy default stream, 2 that of the calling thread, else its handle.
typedef void *bp_stream;

// A block, for `bp_lookup`.
typedef struct bp_block {
  // `sizeof` of this struct, which the caller sets.
  size_t size;
  // The address of its first byte.
  size_t base;
  // The bytes that were asked for.
  uint64_t bytes;
  // Those that it has.
  uint64_t rounded_bytes;
  // The stream of its allocation.
  size_t stream;
  // The ordinal of its device.
  int32_t device;
  // Not 0 for a block of the memory of graphs.
  int32_t is_private;
} bp_block;

// Returns for a context and a stream whether that is in a capture; null for each captured stream.
typedef int (*bp_filter)(void*, void*);

// Called with a context that is not needed any more; null calls nothing.
typedef void (*bp_done)(void*);

// The figures of a pool, in bytes and numbers of calls; `docs/statistics.md` tells of each.
typedef struct bp_figures {
  // `sizeof` of this struct, which the caller sets.
  size_t size;
  // Requests.
  uint64_t allocations;
  // Those that cached memory served.
  uint64_t hits;
  // Those for which the device gave memory.
  uint64_t misses;
  // Those that were refused.
  uint64_t failures;
  // Blocks that C has now.
  uint64_t live_blocks;
  // What live blocks have asked for.
  uint64_t requested_bytes;
  // Its peak: the least that any pool must have.
  uint64_t requested_peak_bytes;
  // What live blocks have.
  uint64_t allocated_bytes;
  // Its peak.
  uint64_t allocated_peak_bytes;
  // What the device has given.
  uint64_t reserved_bytes;
  // Its peak.
  uint64_t reserved_peak_bytes;
  // What no block has.
  uint64_t cached_bytes;
  // Those of the cached bytes that wait for graphs.
  uint64_t private_bytes;
  // What the device does not take back.
  uint64_t lost_bytes;
  // The limit on reserved bytes; `UINT64_MAX` without one.
  uint64_t limit_bytes;
  // Page-locked bytes that copies have beside the pool.
  uint64_t staging_bytes;
} bp_figures;

// Asked for memory before a request is refused: a context and the missing bytes. Returns whether it freed any.
typedef int (*bp_shortage)(void*, size_t);

// Told of a refusal: a context and the text. It may throw.
typedef void (*bp_oom)(void*, const char*);

// The elements of a tensor: `DLDataType`.
typedef struct bp_element {
  // The kind: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
  uint8_t code;
  // Bits of each.
  uint8_t bits;
  // 1, but for vectors.
  uint16_t lanes;
} bp_element;

// Throws a refusal: its text, and whether memory is what is missing.
typedef void (*bp_throw)(const char*, int);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the interface: `BP_ABI` of the header that a program was compiled with.
uint32_t bp_abi(void);

// Returns the version of the library, as a text.
const char *bp_version(void);

// Tells of the last error of this thread. `details->size` is set by the caller.
//
// # Safety
//
// `details` is null or a struct of the size that it says.
enum bp_status bp_last_error(struct bp_error *details);

// Makes a pool. `settings`: TOML as in `docs/configuration.md`, or null for `policy = "arena"`. `memory`: "cuda",
// "cuda-vmm", "cuda-async", "pinned" or "host". `device`: its ordinal; none for the host.
//
// # Safety
//
// The texts are null or end with a zero byte; `pool` is null or a place for the pool.
enum bp_status bp_pool_new(const char *settings,
                           const char *memory,
                           int device,
                           const struct bp_pool **pool);

// Returns the process's one pool of a device, which the first call makes, and which lives as long as the process.
// `memory`: as for `bp_pool_new`; null for the pool of device memory, whatever its memory is.
//
// # Safety
//
// As for `bp_pool_new`.
enum bp_status bp_pool_of_device(const char *memory,
                                 int device,
                                 const struct bp_pool **pool);

// As `bp_pool_of_device`, for a pool that has been made: `BP_UNKNOWN` if none has, and none is made.
//
// # Safety
//
// As for `bp_pool_new`.
enum bp_status bp_pool_if_made(const char *memory, int device, const struct bp_pool **pool);

// Says with which settings and memory the pools of `bp_pool_of_device` are made. Call it before the first of them.
//
// # Safety
//
// The texts are null or end with a zero byte.
enum bp_status bp_set_devices(const char *settings,
                              const char *memory);

// Returns a further owner of a pool: the same pointer, for which `bp_pool_drop` is called once more.
//
// # Safety
//
// `pool` is null or alive.
const struct bp_pool *bp_pool_clone(const struct bp_pool *pool);

// Ends an owner's part. The last one closes the pool; its live blocks stay valid, and may be freed afterwards.
//
// # Safety
//
// `pool` is null, or one of its owners drops it once. No other call with it is under way at the last drop, and none
// comes after it but the frees of its live blocks.
enum bp_status bp_pool_drop(const struct bp_pool *pool);

// Allocates `bytes` bytes for work on `stream`. 0 bytes are the null address. `align`: 0, or a power of two that the
// memory offers: up to 256 on a device.
//
// # Safety
//
// `pool` is null or alive, the stream is alive, `at` is null or a place for an address.
enum bp_status bp_alloc(const struct bp_pool *pool,
                        size_t bytes,
                        size_t align,
                        bp_stream stream,
                        void **at);

// As `bp_alloc`, for work on every stream: all that used the memory before has passed when it returns. It waits on the
// host, and is refused where that would break a capture.
//
// # Safety
//
// As for `bp_alloc`.
enum bp_status bp_alloc_sync(const struct bp_pool *pool,
                             size_t bytes,
                             size_t align,
                             void **at);

// Frees a block: it serves `stream` next, behind what that was given so far, and behind the streams that were recorded
// for it. The caller has ordered `stream` behind the allocation and all other uses. A null address is none. Waits for
// nothing, but on the host for a stream of another device, and for all work where `stream` is refused; what a capture
// forbids to wait for now, a later call frees. The status says what was refused, and the block is gone all the same.
//
// # Safety
//
// `pool` is null or alive, or was dropped with this block alive; the stream is alive.
enum bp_status bp_free(const struct bp_pool *pool,
                       void *at,
                       bp_stream stream);

// As `bp_free` on the stream of the block's allocation, which may have ended.
//
// # Safety
//
// As for `bp_free`.
enum bp_status bp_free_here(const struct bp_pool *pool, void *at);

// One more free must come before the block goes: for arrays that are shared.
//
// # Safety
//
// `pool` is null or alive.
enum bp_status bp_hold(const struct bp_pool *pool, void *at);

// Records that `stream`, which the caller has ordered behind the block's earlier uses, uses the block until its free.
// For a stream of another device the free waits on the host.
//
// # Safety
//
// `pool` is null or alive, the stream is alive.
enum bp_status bp_record(const struct bp_pool *pool,
                         void *at,
                         bp_stream stream);

// Orders `stream` behind the earlier uses that are known of the block, and records that it uses the block until its
// free. `reads`: not 0 for a use that only reads, which waits for writes alone.
//
// # Safety
//
// As for `bp_record`.
enum bp_status bp_use(const struct bp_pool *pool,
                      void *at,
                      bp_stream stream,
                      int reads);

// Tells of the block that an address is the start of, or lies in. `found->size` is set by the caller.
//
// # Safety
//
// `pool` is null or alive; `found` is null or a struct of the size that it says.
enum bp_status bp_lookup(const struct bp_pool *pool, const void *at, struct bp_block *found);

// Ends what is known of a stream: before its owner destroys it, which costs an event, or after that, when the host
// waits for all work of the device. A stream that nobody ends is noticed when its handle comes again.
//
// # Safety
//
// `pool` is null or alive; a pool of the device of the stream.
enum bp_status bp_stream_end(const struct bp_pool *pool,
                             bp_stream stream);

// Says that a capture of another library is about to begin, whose graph keeps its memory by the id of two numbers.
// Requests on its streams come from that memory until `bp_private_end`. `filter`: returns for a stream whether it is
// in this capture, or null for each stream that the driver says is captured; it is called with `context` from threads
// that allocate, until `done` is called with it once, and throws nothing. One capture at a time may be without a filter:
// a second one is refused with `BP_NOT_SUBMITTED`.
//
// # Safety
//
// `pool` is null or alive. Captured work uses only memory of its capture, graphs of one id run one after the other, and
// the id is released after them. The functions may be called from any thread.
enum bp_status bp_private_begin(const struct bp_pool *pool,
                                uint64_t a,
                                uint64_t b,
                                bp_filter filter,
                                void *context,
                                bp_done done);

// Ends a capture of an id, after the other library has ended it. `BP_NOT_SUBMITTED` while it goes on: call it again.
//
// # Safety
//
// `pool` is null or alive.
enum bp_status bp_private_end(const struct bp_pool *pool,
                              uint64_t a,
                              uint64_t b);

// Says that one graph of an id is gone. With the last one the memory goes to the pool, behind all work of the device:
// the host waits for it. Beside another capture that waits until that has ended.
//
// # Safety
//
// `pool` is null or alive.
enum bp_status bp_private_release(const struct bp_pool *pool,
                                  uint64_t a,
                                  uint64_t b);

// Gives at least `bytes` bytes of cached memory back, the oldest first, or all there is. `given`: null, or a place for
// the bytes.
//
// # Safety
//
// `pool` is null or alive; `given` is null or a place for a number.
enum bp_status bp_trim(const struct bp_pool *pool,
                       uint64_t bytes,
                       uint64_t *given);

// Gives all cached memory back.
//
// # Safety
//
// As for `bp_trim`.
enum bp_status bp_clear(const struct bp_pool *pool, uint64_t *given);

// Gives cached memory back until the device has `bytes` free bytes.
//
// # Safety
//
// As for `bp_trim`.
enum bp_status bp_make_room(const struct bp_pool *pool, uint64_t bytes, uint64_t *given);

// Sets the limit on reserved bytes, and gives back what is cached above it.
//
// # Safety
//
// As for `bp_trim`.
enum bp_status bp_set_limit(const struct bp_pool *pool, uint64_t bytes, uint64_t *given);

// Sets the limit to a share of the bytes of the device, from 0 to 1, but not above the limit of the settings or of
// `bp_set_limit`.
//
// # Safety
//
// As for `bp_trim`.
enum bp_status bp_set_fraction(const struct bp_pool *pool,
                               double share,
                               uint64_t *given);

// Tells the figures of a pool. `figures->size` is set by the caller.
//
// # Safety
//
// `pool` is null or alive; `figures` is null or a struct of the size that it says.
enum bp_status bp_stats(const struct bp_pool *pool, struct bp_figures *figures);

// Tells all figures as JSON: `pool`, and `torch` by the names of PyTorch's `memory_stats`. `bp_text_free` frees the text.
//
// # Safety
//
// `pool` is null or alive; `json` is null or a place for a text.
enum bp_status bp_stats_json(const struct bp_pool *pool,
                             char **json);

// Tells where the memory is as JSON: segments and their ranges. `bp_text_free` frees the text.
//
// # Safety
//
// As for `bp_stats_json`.
enum bp_status bp_map_json(const struct bp_pool *pool, char **json);

// Writes the figures and a picture of the memory to a file, as a text.
//
// # Safety
//
// `pool` is null or alive; `path` is null or ends with a zero byte.
enum bp_status bp_report(const struct bp_pool *pool, const char *path);

// Frees a text of this library. Null is none.
//
// # Safety
//
// `text` is null, or a text of `bp_stats_json` or `bp_map_json` that was not freed.
void bp_text_free(char *text);

// The peaks begin anew from the present figures.
//
// # Safety
//
// `pool` is null or alive.
enum bp_status bp_reset_peaks(const struct bp_pool *pool);

// The counts begin anew from 0.
//
// # Safety
//
// `pool` is null or alive.
enum bp_status bp_reset_counts(const struct bp_pool *pool);

// Sets the function that a request asks before it is refused, with the bytes that are missing; it returns not 0 if it
// has freed any, from this pool or elsewhere. It runs on the thread that asks, without a lock of the pool. Null ends it.
//
// # Safety
//
// `pool` is null or alive; the function may be called with `context` from any thread until it is replaced.
enum bp_status bp_on_shortage(const struct bp_pool *pool,
                              bp_shortage call,
                              void *context);

// Sets the function that is told of a refusal, with its text, as the last step of the call. It may throw an exception of
// C++ through `bp_alloc`. Null ends it.
//
// # Safety
//
// As for `bp_on_shortage`.
enum bp_status bp_on_oom(const struct bp_pool *pool,
                         bp_oom call,
                         void *context);

// Allocates for the legacy default stream, behind which CuPy's blocking streams run. Null where there is no memory.
// `pool`: the allocator's `param`; null for the one pool of the device.
//
// # Safety
//
// `pool` is null or alive.
void *bp_cupy_malloc(const struct bp_pool *pool,
                     size_t bytes,
                     int device);

// Frees what `bp_cupy_malloc` gave for the same pool and device.
//
// # Safety
//
// `pool` is null or alive.
void bp_cupy_free(const struct bp_pool *pool, void *at, int device);

// Makes a tensor of a block, which lives until the deleter of the tensor was called, on any thread: a
// `DLManagedTensorVersioned` where `versioned` is not 0, else a `DLManagedTensor`. The consumer's stream is not
// ordered here: `bp_use` does that. `at`: an address inside of a block, or null for a tensor without elements.
//
// # Safety
//
// `pool` is null or alive; `shape` and `strides` have `axes` numbers, and `strides` may be null; `tensor` is null or a
// place for a pointer.
enum bp_status bp_dlpack(const struct bp_pool *pool,
                         void *at,
                         int axes,
                         const int64_t *shape,
                         const int64_t *strides,
                         struct bp_element element,
                         int versioned,
                         void **tensor);

// Sets the function that throws where memory is refused.
void bp_torch_on_oom(bp_throw throw_);

// Allocates. Calls the function of `bp_torch_on_oom` where it cannot, and returns null if there is none.
//
// # Safety
//
// The stream is alive.
void *bp_torch_alloc(ptrdiff_t bytes, int device, bp_stream stream);

// Frees on the stream of the allocation, which is what PyTorch names.
//
// # Safety
//
// `at` is of `bp_torch_alloc`, and not freed.
void bp_torch_free(void *at, ptrdiff_t _bytes, int device, bp_stream _stream);

// A segment for PyTorch's own allocator, behind a `MemPool`: usable on all streams.
void *bp_torch_upstream_alloc(ptrdiff_t bytes, int device, bp_stream _stream);

// Frees a segment, behind all work of the device: nobody tells of uses.
void bp_torch_upstream_free(void *at, ptrdiff_t _bytes, int device, bp_stream _stream);

// Records a stream, for `Tensor.record_stream`.
//
// # Safety
//
// The stream is alive.
void bp_torch_record(void *at, bp_stream stream);

// Gives all cached memory of all devices back, for `torch.cuda.empty_cache`.
void bp_torch_empty(void);

// Sets the limit to a share of the device, for `torch.cuda.set_per_process_memory_fraction`.
void bp_torch_fraction(double share, int device);

// The block that an address lies in, and its size.
//
// # Safety
//
// `bytes` is null or a place for a number.
void *bp_torch_base(void *at, size_t *bytes);

// Begins a capture, as `bp_private_begin` does. The hook of PyTorch passes an object of C++, which
// `bucketpool_torch.cpp` turns into these arguments; without it, each captured stream is of the capture.
//
// # Safety
//
// As for `bp_private_begin`.
void bp_torch_begin(int device, uint64_t a, uint64_t b, bp_filter filter, void *context, bp_done done);

// Begins a capture for a hook without its filter: PyTorch passes one by an address that this does not read.
//
// # Safety
//
// As for `bp_private_begin`.
void bp_torch_begin_any(int device, uint64_t a, uint64_t b, const void *_filter);

// Ends a capture, as `bp_private_end` does. What is refused now, a later call of the pool does: PyTorch calls once.
void bp_torch_end(int device,
                  uint64_t a,
                  uint64_t b);

// Says that a graph is gone, as `bp_private_release` does; later, where that is refused now.
void bp_torch_release(int device, uint64_t a, uint64_t b);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BUCKETPOOL_H */
