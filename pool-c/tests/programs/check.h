// What the programs share: checks that end the program, and the double of libcuda.
#ifndef CHECK_H
#define CHECK_H
#include "bucketpool.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *why(void) {
    bp_error error = {.size = sizeof error};
    return bp_last_error(&error) == BP_OK ? error.text : "no error";
}

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #what, why());          \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)
#define OK(call) CHECK((call) == BP_OK)
// A refusal whose text names what was wrong.
#define REFUSED(call, status, word) CHECK((call) == (status) && strstr(why(), (word)))

typedef void *stream;

// The functions of the double, which has the driver's names.
#define DRIVER(name) driver(#name)
static void *driver(const char *name) {
    static void *lib;
    if (!lib) lib = dlopen("libcuda.so", RTLD_NOW | RTLD_GLOBAL);
    void *function = lib ? dlsym(lib, name) : NULL;
    if (!function) {
        fprintf(stderr, "the double has no %s\n", name);
        exit(1);
    }
    return function;
}
#define CALL(name, type, ...) ((type)DRIVER(name))(__VA_ARGS__)

static inline unsigned long hazards(void) {
    return CALL(cuda_double_hazards, unsigned long (*)(void));
}
static inline void calls_wait(bool wait) { CALL(cuda_double_calls_wait, void (*)(bool), wait); }
// A kernel that uses bytes, on a stream. The driver wants a context.
#define kernel(on, at, bytes) \
    CHECK(CALL(cuda_double_kernel, int (*)(stream, void *, size_t), (on), (at), (bytes)) == 0)
// Makes the context of a device current, as libcudart does.
static inline void use_device(int device) {
    void *context = NULL;
    CHECK(CALL(cuInit, int (*)(int), 0) == 0);
    CHECK(CALL(cuDevicePrimaryCtxRetain, int (*)(void **, int), &context, device) == 0);
    CHECK(CALL(cuCtxSetCurrent, int (*)(void *), context) == 0);
}
static inline stream new_stream(void) {
    stream new = NULL;
    CHECK(CALL(cuStreamCreate, int (*)(stream *, unsigned), &new, 1) == 0);
    return new;
}
static inline void end_stream(stream on) { CHECK(CALL(cuStreamDestroy_v2, int (*)(stream), on) == 0); }
static inline void wait_for_all(void) { CHECK(CALL(cuCtxSynchronize, int (*)(void)) == 0); }
// `after` is ordered behind what `before` was given.
static inline void order(stream after, stream before) {
    void *event = NULL;
    CHECK(CALL(cuEventCreate, int (*)(void **, unsigned), &event, 2) == 0);
    CHECK(CALL(cuEventRecord, int (*)(void *, stream), event, before) == 0);
    CHECK(CALL(cuStreamWaitEvent, int (*)(stream, void *, unsigned), after, event, 0) == 0);
    CHECK(CALL(cuEventDestroy_v2, int (*)(void *), event) == 0);
}
#endif
