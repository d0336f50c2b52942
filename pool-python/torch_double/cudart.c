/* A stand-in for libcudart.so.13 over the double of libcuda (pool-cuda/double), as far as PyTorch 2.15
 * calls it for memory, streams, events, copies and graphs.
 *
 * Memory, order and errors are the double's: each function here asks the driver's function of the same
 * purpose. Kernels do nothing: a launch succeeds and writes no memory, so shapes and allocations are
 * right and values are not. Functions that are missing here are in the library of stubs that
 * `cargo xtask torch` generates; those return cudaErrorNotSupported. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Error; /* cudaError_t. Its numbers are those of CUresult, for all that the double returns. */
typedef uintptr_t Handle; /* a stream, an event, a graph, a memory pool, or a context */
typedef uint64_t Address; /* in a device's memory */

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { DEVICES = 2 };

/* The double's functions (and CUDA's, in libcuda.so.1). */
extern Error cuInit(unsigned);
extern Error cuDriverGetVersion(int *);
extern Error cuDeviceGetCount(int *);
extern Error cuDeviceGetName(char *, int, int);
extern Error cuDeviceGetUuid_v2(void *, int);
extern Error cuDeviceGetPCIBusId(char *, int, int);
extern Error cuDeviceTotalMem_v2(size_t *, int);
extern Error cuDeviceGetAttribute(int *, int, int);
extern Error cuDeviceCanAccessPeer(int *, int, int);
extern Error cuDeviceGetDefaultMemPool(Handle *, int);
extern Error cuDevicePrimaryCtxRetain(Handle *, int);
extern Error cuCtxGetCurrent(Handle *);
extern Error cuCtxSetCurrent(Handle);
extern Error cuCtxGetDevice(int *);
extern Error cuCtxSynchronize(void);
extern Error cuCtxEnablePeerAccess(Handle, unsigned);
extern Error cuGetErrorName(Error, const char **);
extern Error cuGetErrorString(Error, const char **);
extern Error cuStreamCreate(Handle *, unsigned);
extern Error cuStreamCreateWithPriority(Handle *, unsigned, int);
extern Error cuStreamDestroy_v2(Handle);
extern Error cuStreamSynchronize(Handle);
extern Error cuStreamQuery(Handle);
extern Error cuStreamWaitEvent(Handle, Handle, unsigned);
extern Error cuStreamIsCapturing(Handle, int *);
extern Error cuStreamBeginCapture_v2(Handle, int);
extern Error cuStreamEndCapture(Handle, Handle *);
extern Error cuStreamGetCaptureInfo_v3(Handle, int *, unsigned long long *, Handle *, void *, void *,
                                       size_t *);
extern Error cuThreadExchangeStreamCaptureMode(int *);
extern Error cuLaunchHostFunc(Handle, void (*)(void *), void *);
extern Error cuEventCreate(Handle *, unsigned);
extern Error cuEventDestroy_v2(Handle);
extern Error cuEventRecord(Handle, Handle);
extern Error cuEventQuery(Handle);
extern Error cuEventSynchronize(Handle);
extern Error cuMemAlloc_v2(Address *, size_t);
extern Error cuMemFree_v2(Address);
extern Error cuMemAllocAsync(Address *, size_t, Handle);
extern Error cuMemFreeAsync(Address, Handle);
extern Error cuMemHostAlloc(void **, size_t, unsigned);
extern Error cuMemFreeHost(void *);
extern Error cuMemHostRegister_v2(void *, size_t, unsigned);
extern Error cuMemHostUnregister(void *);
extern Error cuMemGetInfo_v2(size_t *, size_t *);
extern Error cuMemPoolGetAttribute(Handle, int, void *);
extern Error cuMemPoolSetAttribute(Handle, int, void *);
extern Error cuMemPoolSetAccess(Handle, const void *, size_t);
extern Error cuMemPoolTrimTo(Handle, size_t);
extern Error cuMemcpy(Address, Address, size_t);
extern Error cuMemcpyAsync(Address, Address, size_t, Handle);
extern Error cuMemcpyHtoDAsync_v2(Address, const void *, size_t, Handle);
extern Error cuMemcpyDtoHAsync_v2(void *, Address, size_t, Handle);
extern Error cuMemcpyDtoDAsync_v2(Address, Address, size_t, Handle);
extern Error cuMemcpyPeerAsync(Address, Handle, Address, Handle, size_t, Handle);
extern Error cuMemsetD8_v2(Address, unsigned char, size_t);
extern Error cuMemsetD8Async(Address, unsigned char, size_t, Handle);
extern Error cuPointerGetAttributes(unsigned, const int *, void **, Address);
extern Error cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long);
extern Error cuGraphLaunch(Handle, Handle);
extern Error cuGraphDestroy(Handle);
extern Error cuGraphExecDestroy(Handle);

/* The runtime's own state: a device and a last error for each thread, a context for each device. */

static _Thread_local int chosen;
static _Thread_local Error last;
static Handle contexts[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void initialize(void) {
    Error error = cuInit(0);
    if (error) {
        fprintf(stderr, "cudart.c: cuInit of the double returned %d; expected 0\n", error);
        abort();
    }
}

static void start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, initialize);
}

/* Keeps an error for cudaGetLastError. Work that is not done yet is none. */
static Error done(Error error) {
    if (error && error != NOT_READY) last = error;
    return error;
}

/* Makes the primary context of a device and keeps it for the life of the process. */
static Error context_of(int device, Handle *context) {
    start();
    if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    Error error = contexts[device] ? SUCCESS : cuDevicePrimaryCtxRetain(&contexts[device], device);
    *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return error;
}

/* Gives the thread the context of its device, if it has none. */
static Error here(void) {
    Handle context = 0;
    start();
    if (cuCtxGetCurrent(&context) == SUCCESS && context) return SUCCESS;
    Error error = context_of(chosen, &context);
    return error ? error : cuCtxSetCurrent(context);
}

/* Asks the driver in the thread's context. */
#define ASK(call)                              \
    do {                                       \
        Error error = here();                  \
        return done(error ? error : (call));   \
    } while (0)

/* Devices and errors */

Error cudaGetDeviceCount(int *count) { return start(), done(cuDeviceGetCount(count)); }

Error cudaGetDevice(int *device) {
    Handle context = 0;
    start();
    if (cuCtxGetCurrent(&context) == SUCCESS && context) return done(cuCtxGetDevice(device));
    *device = chosen;
    return SUCCESS;
}

Error cudaSetDevice(int device) {
    Handle context = 0;
    Error error = context_of(device, &context);
    if (error) return done(error);
    chosen = device;
    return done(cuCtxSetCurrent(context));
}

Error cudaGetLastError(void) {
    Error error = last;
    last = SUCCESS;
    return error;
}

Error cudaPeekAtLastError(void) { return last; }

const char *cudaGetErrorName(Error error) {
    const char *text = "";
    cuGetErrorName(error, &text);
    return text;
}

const char *cudaGetErrorString(Error error) {
    static _Thread_local char text[160];
    const char *said = "";
    cuGetErrorString(error, &said);
    snprintf(text, sizeof text, "%s (code %d of the double of libcuda)", said, error);
    return text;
}

/* The double claims an older version. PyTorch asks for none, but its build needs CUDA 13. */
Error cudaDriverGetVersion(int *version) { return *version = 13020, SUCCESS; }
Error cudaRuntimeGetVersion(int *version) { return *version = 13020, SUCCESS; }

/* The head of cudaDeviceProp of CUDA 13. What is behind it is left as it is. */
struct Properties {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luid_mask;
    size_t global_bytes, shared_bytes;
    int registers, warp;
    size_t pitch;
    int block_threads, block[3], grid[3];
    size_t constant_bytes;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int multiprocessors, integrated, maps_host, textures[39];
    size_t surface_alignment;
    int concurrent_kernels, ecc, bus, bus_device, domain, tcc, copy_engines, unified_addresses;
    int bus_bits, l2_bytes, persisting_l2_bytes, multiprocessor_threads;
};

static int attribute(int which, int device) {
    int value = 0;
    cuDeviceGetAttribute(&value, which, device);
    return value;
}

Error cudaGetDeviceProperties(struct Properties *told, int device) {
    start();
    memset(told, 0, sizeof *told);
    Error error = cuDeviceGetName(told->name, sizeof told->name, device);
    if (error) return done(error);
    cuDeviceGetUuid_v2(told->uuid, device);
    cuDeviceTotalMem_v2(&told->global_bytes, device);
    told->block_threads = attribute(1, device);
    told->shared_bytes = (size_t)attribute(8, device);
    told->warp = attribute(10, device);
    told->registers = attribute(12, device);
    told->multiprocessors = attribute(16, device);
    told->multiprocessor_threads = attribute(39, device);
    told->unified_addresses = attribute(41, device);
    told->major = attribute(75, device);
    told->minor = attribute(76, device);
    for (int axis = 0; axis < 3; axis++) {
        told->block[axis] = axis < 2 ? 1024 : 64;
        told->grid[axis] = axis ? 65535 : INT32_MAX;
    }
    return SUCCESS;
}

Error cudaDeviceGetAttribute(int *value, int which, int device) {
    return start(), done(cuDeviceGetAttribute(value, which, device));
}

Error cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    return start(), done(cuDeviceGetPCIBusId(text, bytes, device));
}

Error cudaDeviceCanAccessPeer(int *can, int from, int to) {
    return start(), done(cuDeviceCanAccessPeer(can, from, to));
}

Error cudaDeviceEnablePeerAccess(int device, unsigned flags) {
    Handle context = 0;
    Error error = context_of(device, &context);
    if (error) return done(error);
    ASK(cuCtxEnablePeerAccess(context, flags));
}

Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return SUCCESS;
}

Error cudaDeviceSynchronize(void) { ASK(cuCtxSynchronize()); }
Error cudaProfilerStart(void) { return SUCCESS; }
Error cudaProfilerStop(void) { return SUCCESS; }

/* Streams and captures */

Error cudaStreamCreate(Handle *stream) { ASK(cuStreamCreate(stream, 0)); }
Error cudaStreamCreateWithFlags(Handle *stream, unsigned flags) { ASK(cuStreamCreate(stream, flags)); }
Error cudaStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    ASK(cuStreamCreateWithPriority(stream, flags, priority));
}
Error cudaStreamDestroy(Handle stream) { ASK(cuStreamDestroy_v2(stream)); }
Error cudaStreamSynchronize(Handle stream) { ASK(cuStreamSynchronize(stream)); }
Error cudaStreamQuery(Handle stream) { ASK(cuStreamQuery(stream)); }
Error cudaStreamGetPriority(Handle stream, int *priority) {
    (void)stream; /* the double runs its streams without priorities */
    return *priority = 0, SUCCESS;
}
Error cudaStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    ASK(cuStreamWaitEvent(stream, event, flags));
}
Error cudaStreamIsCapturing(Handle stream, int *status) { ASK(cuStreamIsCapturing(stream, status)); }
Error cudaStreamBeginCapture(Handle stream, int mode) { ASK(cuStreamBeginCapture_v2(stream, mode)); }
Error cudaStreamEndCapture(Handle stream, Handle *graph) { ASK(cuStreamEndCapture(stream, graph)); }
Error cudaStreamGetCaptureInfo(Handle stream, int *status, unsigned long long *id, Handle *graph,
                               void *dependencies, void *edges, size_t *count) {
    ASK(cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count));
}
Error cudaThreadExchangeStreamCaptureMode(int *mode) {
    return start(), done(cuThreadExchangeStreamCaptureMode(mode));
}
Error cudaLaunchHostFunc(Handle stream, void (*function)(void *), void *data) {
    ASK(cuLaunchHostFunc(stream, function, data));
}

/* A callback of the older kind, which is told the stream and an error. */
struct Callback {
    void (*function)(Handle, Error, void *);
    Handle stream;
    void *data;
};

static void call_back(void *given) {
    struct Callback callback = *(struct Callback *)given;
    free(given);
    callback.function(callback.stream, SUCCESS, callback.data);
}

Error cudaStreamAddCallback(Handle stream, void (*function)(Handle, Error, void *), void *data,
                            unsigned flags) {
    struct Callback *callback = malloc(sizeof *callback);
    if (!callback || flags) return free(callback), done(INVALID_VALUE);
    *callback = (struct Callback){function, stream, data};
    ASK(cuLaunchHostFunc(stream, call_back, callback));
}

/* Events. The double has no clock. */

Error cudaEventCreate(Handle *event) { ASK(cuEventCreate(event, 0)); }
Error cudaEventCreateWithFlags(Handle *event, unsigned flags) { ASK(cuEventCreate(event, flags)); }
Error cudaEventDestroy(Handle event) { ASK(cuEventDestroy_v2(event)); }
Error cudaEventRecord(Handle event, Handle stream) { ASK(cuEventRecord(event, stream)); }
Error cudaEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    if (flags) return done(NOT_SUPPORTED); /* an event node of a graph */
    ASK(cuEventRecord(event, stream));
}
Error cudaEventQuery(Handle event) { ASK(cuEventQuery(event)); }
Error cudaEventSynchronize(Handle event) { ASK(cuEventSynchronize(event)); }
Error cudaEventElapsedTime(float *milliseconds, Handle from, Handle to) {
    (void)from, (void)to;
    return *milliseconds = 0, SUCCESS;
}

/* Memory */

Error cudaMalloc(Address *at, size_t bytes) {
    if (bytes == 0) return *at = 0, SUCCESS;
    ASK(cuMemAlloc_v2(at, bytes));
}
Error cudaFree(Address at) { ASK(at ? cuMemFree_v2(at) : SUCCESS); }
Error cudaMallocAsync(Address *at, size_t bytes, Handle stream) { ASK(cuMemAllocAsync(at, bytes, stream)); }
Error cudaFreeAsync(Address at, Handle stream) { ASK(cuMemFreeAsync(at, stream)); }
Error cudaHostAlloc(void **at, size_t bytes, unsigned flags) { ASK(cuMemHostAlloc(at, bytes, flags)); }
Error cudaMallocHost(void **at, size_t bytes) { ASK(cuMemHostAlloc(at, bytes, 0)); }
Error cudaFreeHost(void *at) { ASK(cuMemFreeHost(at)); }
Error cudaHostRegister(void *at, size_t bytes, unsigned flags) {
    ASK(cuMemHostRegister_v2(at, bytes, flags));
}
Error cudaHostUnregister(void *at) { ASK(cuMemHostUnregister(at)); }
Error cudaMemGetInfo(size_t *free_bytes, size_t *total) { ASK(cuMemGetInfo_v2(free_bytes, total)); }

Error cudaDeviceGetDefaultMemPool(Handle *pool, int device) {
    return start(), done(cuDeviceGetDefaultMemPool(pool, device));
}
Error cudaMemPoolGetAttribute(Handle pool, int which, void *value) {
    ASK(cuMemPoolGetAttribute(pool, which, value));
}
Error cudaMemPoolSetAttribute(Handle pool, int which, void *value) {
    ASK(cuMemPoolSetAttribute(pool, which, value));
}
Error cudaMemPoolSetAccess(Handle pool, const void *access, size_t count) {
    ASK(cuMemPoolSetAccess(pool, access, count));
}
Error cudaMemPoolTrimTo(Handle pool, size_t keep) { ASK(cuMemPoolTrimTo(pool, keep)); }

/* cudaPointerAttributes. */
struct PointerAttributes {
    int type; /* 0: unknown to the driver, 1: host, 2: device */
    int device;
    Address on_device;
    void *on_host;
};

Error cudaPointerGetAttributes(struct PointerAttributes *told, void *at) {
    const int which[] = {2, 9, 3, 4}; /* memory type, device ordinal, device pointer, host pointer */
    void *where[] = {&told->type, &told->device, &told->on_device, &told->on_host};
    ASK(cuPointerGetAttributes(4, which, where, (Address)at));
}

/* Copies and fills. Of a kind other than these three the driver finds out where the memory is. */
enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

static Error copy(Address to, Address from, size_t bytes, int kind, Handle stream) {
    switch (kind) {
    case TO_DEVICE: return cuMemcpyHtoDAsync_v2(to, (const void *)from, bytes, stream);
    case TO_HOST: return cuMemcpyDtoHAsync_v2((void *)to, from, bytes, stream);
    case ON_DEVICE: return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
    default: return cuMemcpyAsync(to, from, bytes, stream);
    }
}

Error cudaMemcpyAsync(Address to, Address from, size_t bytes, int kind, Handle stream) {
    ASK(copy(to, from, bytes, kind, stream));
}
Error cudaMemcpy(Address to, Address from, size_t bytes, int kind) {
    (void)kind;
    ASK(cuMemcpy(to, from, bytes));
}
Error cudaMemcpyPeerAsync(Address to, int to_device, Address from, int from_device, size_t bytes,
                          Handle stream) {
    Handle contexts_of[2] = {0, 0};
    Error error = context_of(to_device, &contexts_of[0]);
    if (!error) error = context_of(from_device, &contexts_of[1]);
    if (error) return done(error);
    ASK(cuMemcpyPeerAsync(to, contexts_of[0], from, contexts_of[1], bytes, stream));
}
Error cudaMemset(Address at, int byte, size_t bytes) { ASK(cuMemsetD8_v2(at, (unsigned char)byte, bytes)); }
Error cudaMemsetAsync(Address at, int byte, size_t bytes, Handle stream) {
    ASK(cuMemsetD8Async(at, (unsigned char)byte, bytes, stream));
}

/* Graphs */

Error cudaGraphInstantiateWithFlags(Handle *instance, Handle graph, unsigned long long flags) {
    ASK(cuGraphInstantiateWithFlags(instance, graph, flags));
}
Error cudaGraphInstantiate(Handle *instance, Handle graph, unsigned long long flags) {
    ASK(cuGraphInstantiateWithFlags(instance, graph, flags));
}
Error cudaGraphLaunch(Handle instance, Handle stream) { ASK(cuGraphLaunch(instance, stream)); }
Error cudaGraphDestroy(Handle graph) { ASK(cuGraphDestroy(graph)); }
Error cudaGraphExecDestroy(Handle instance) { ASK(cuGraphExecDestroy(instance)); }
/* PyTorch asks whether the graph is empty. The double does not count nodes: say one. */
Error cudaGraphGetNodes(Handle graph, void *nodes, size_t *count) {
    (void)graph;
    if (nodes) return done(NOT_SUPPORTED);
    return *count = 1, SUCCESS;
}

/* The driver's functions by name. A name stands for its second version where there is one, as for any
 * version of CUDA that PyTorch 2.15 asks for. */
Error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                       unsigned long long flags, int *found) {
    (void)version, (void)flags;
    static void *driver;
    char second[128];
    start();
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    snprintf(second, sizeof second, "%s_v2", name);
    *function = driver ? dlsym(driver, second) : NULL;
    if (driver && !*function) *function = dlsym(driver, name);
    if (found) *found = *function ? 0 : 1;
    return SUCCESS;
}

/* Kernels, which do nothing */

/* The head of cudaFuncAttributes. */
struct FunctionAttributes {
    size_t shared_bytes, constant_bytes, local_bytes;
    int block_threads, registers;
};

Error cudaFuncGetAttributes(struct FunctionAttributes *told, const void *kernel) {
    (void)kernel;
    *told = (struct FunctionAttributes){.block_threads = 1024, .registers = 32};
    return SUCCESS;
}
Error cudaFuncSetAttribute(const void *kernel, int which, int value) {
    (void)kernel, (void)which, (void)value;
    return SUCCESS;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                    size_t shared) {
    (void)kernel, (void)threads, (void)shared;
    return *blocks = 1, SUCCESS;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                             int threads, size_t shared,
                                                             unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
Error cudaLaunchKernel(const void *kernel) {
    (void)kernel;
    ASK(SUCCESS);
}
Error cudaLaunchKernelExC(const void *settings) { return cudaLaunchKernel(settings); }
Error __cudaLaunchKernel(const void *kernel) { return cudaLaunchKernel(kernel); }
Error __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return SUCCESS;
}

/* What a compiled file with kernels calls when it is loaded. */

void **__cudaRegisterFatBinary(void *binary) {
    static void *registered;
    (void)binary;
    return &registered;
}
void __cudaRegisterFatBinaryEnd(void **registered) { (void)registered; }
void __cudaUnregisterFatBinary(void **registered) { (void)registered; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
Error __cudaPushCallConfiguration(void) { return SUCCESS; }
Error __cudaPopCallConfiguration(void) { return SUCCESS; }
