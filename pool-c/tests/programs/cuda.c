// Streams, records, graphs and threads of a device: by the double of libcuda, which tells of hazards.
#include "check.h"
#include <pthread.h>

static const bp_pool *pool;

static void streams(void) {
    stream one = new_stream(), other = new_stream();
    void *at = NULL, *next = NULL;
    // A block goes to the stream that frees it, which its owner has ordered.
    OK(bp_alloc(pool, 5000, 256, one, &at));
    CHECK((size_t)at % 256 == 0);
    kernel(one, at, 5000);
    order(other, one);
    kernel(other, at, 5000);
    OK(bp_free(pool, at, other));
    OK(bp_alloc(pool, 5000, 0, other, &next));
    CHECK(next == at);
    kernel(other, next, 5000);
    OK(bp_free(pool, next, other));
    // A recorded stream counts until the free, and the pool orders who comes next.
    OK(bp_alloc(pool, 5000, 0, one, &at));
    kernel(one, at, 5000);
    order(other, one);
    OK(bp_record(pool, at, other));
    kernel(other, at, 5000);
    OK(bp_free_here(pool, at));
    OK(bp_alloc(pool, 5000, 0, one, &next));
    kernel(one, next, 5000);
    // Nobody tells of the uses between an allocation and its free: an event lies before this one.
    void *before = NULL, *again = NULL;
    OK(bp_alloc(pool, 700, 0, one, &at));
    OK(bp_alloc(pool, 9000, 0, one, &before));
    kernel(one, before, 9000);
    OK(bp_free_here(pool, before));
    OK(bp_alloc(pool, 9000, 0, other, &again)); // behind an event of `one`
    kernel(other, again, 9000);
    kernel(one, at, 700);
    OK(bp_free_here(pool, at));
    OK(bp_alloc(pool, 700, 0, other, &before));
    CHECK(before == at);
    kernel(other, before, 700);
    OK(bp_free_here(pool, before));
    OK(bp_free_here(pool, again));
    // The pool orders a stream by itself.
    OK(bp_use(pool, next, other, 0));
    kernel(other, next, 5000);
    OK(bp_use(pool, next, one, 1));
    OK(bp_free(pool, next, one));
    // Default streams: null and 1 are one; 2 is the thread's.
    for (uintptr_t handle = 0; handle < 3; handle++) {
        OK(bp_alloc(pool, 3000, 0, (stream)handle, &at));
        kernel((stream)handle, at, 3000);
        OK(bp_free_here(pool, at));
    }
    // Usable everywhere.
    OK(bp_alloc_sync(pool, 5000, 0, &at));
    kernel(one, at, 5000);
    order(other, one);
    kernel(other, at, 5000);
    OK(bp_free(pool, at, other));
    OK(bp_stream_end(pool, one));
    end_stream(one);
    end_stream(other); // without a word
    wait_for_all();
    CHECK(hazards() == 0);
}

static void begin_capture(stream on) {
    CHECK(CALL(cuStreamBeginCapture_v2, int (*)(stream, int), on, 2) == 0);
}
static void *end_capture(stream on) {
    void *graph = NULL, *runs = NULL;
    CHECK(CALL(cuStreamEndCapture, int (*)(stream, void **), on, &graph) == 0);
    CHECK(CALL(cuGraphInstantiateWithFlags, int (*)(void **, void *, unsigned long long), &runs, graph, 0) == 0);
    CHECK(CALL(cuGraphDestroy, int (*)(void *), graph) == 0);
    return runs;
}

// A stream of another device, uses and frees on it: the host waits for them.
static void foreign(bool is_plain) {
    void *context = NULL;
    CHECK(CALL(cuCtxGetCurrent, int (*)(void **), &context) == 0);
    use_device(1);
    CHECK(CALL(cuCtxEnablePeerAccess, int (*)(void *, unsigned), context, 0) == 0);
    stream theirs = new_stream();
    use_device(0);
    stream ours = new_stream();
    void *at = NULL, *next = NULL;
    REFUSED(bp_alloc(pool, 100, 0, theirs, &at), BP_FOREIGN, "another context");
    OK(bp_alloc(pool, 4000, 0, ours, &at));
    kernel(ours, at, 4000);
    REFUSED(bp_use(pool, at, theirs, 0), BP_FOREIGN, "another context");
    wait_for_all();
    OK(bp_record(pool, at, theirs));
    OK(bp_record(pool, at, theirs));
    if (is_plain) kernel(theirs, at, 4000); // other memory a peer does not reach without more calls
    OK(bp_free_here(pool, at));
    OK(bp_alloc(pool, 4000, 0, ours, &next));
    CHECK(next == at);
    kernel(ours, next, 4000);
    wait_for_all();
    if (is_plain) kernel(theirs, next, 4000);
    OK(bp_free(pool, next, theirs));
    OK(bp_alloc(pool, 4000, 0, ours, &at));
    CHECK(at == next);
    kernel(ours, at, 4000);
    // Beside a capture of that stream nobody gets the block.
    bp_figures figures = {.size = sizeof figures};
    use_device(1);
    begin_capture(theirs);
    use_device(0);
    REFUSED(bp_free(pool, at, theirs), BP_NOT_SUBMITTED, "under capture");
    OK(bp_alloc(pool, 4000, 0, ours, &next));
    CHECK(next != at);
    OK(bp_free_here(pool, next));
    OK(bp_stats(pool, &figures));
    CHECK(figures.live_blocks == 1);
    use_device(1);
    end_capture(theirs);
    use_device(0);
    OK(bp_clear(pool, NULL));
    OK(bp_stats(pool, &figures));
    CHECK(figures.live_blocks == 0 && figures.reserved_bytes == 0);
    // A stream that ended with blocks of it alive.
    OK(bp_alloc(pool, 4000, 0, ours, &at));
    kernel(ours, at, 4000);
    end_stream(ours);
    OK(bp_free_here(pool, at));
    OK(bp_alloc(pool, 4000, 0, NULL, &next));
    kernel(NULL, next, 4000);
    OK(bp_free_here(pool, next));
    wait_for_all();
    CHECK(hazards() == 0);
}

static stream captured;
static int filters, done;
static int filter(void *context, stream on) {
    CHECK(context == &captured);
    filters++;
    return on == captured;
}
static void is_done(void *context) {
    CHECK(context == &captured);
    done++;
}

// Two graphs that share their memory, and replays that nobody tells of.
static void graphs(void) {
    stream replays = new_stream(), other = new_stream();
    captured = new_stream();
    void *first = NULL, *second = NULL, *result = NULL, *outside = NULL, *runs[2];
    REFUSED(bp_private_end(pool, 3, 4), BP_UNKNOWN, "(3, 4)");
    REFUSED(bp_private_release(pool, 3, 4), BP_UNKNOWN, "(3, 4)");
    for (int turn = 0; turn < 2; turn++) {
        OK(bp_private_begin(pool, 3, 4, filter, &captured, is_done));
        begin_capture(captured);
        OK(bp_alloc(pool, 5000, 0, captured, turn ? &second : &first));
        kernel(captured, turn ? second : first, 5000);
        OK(bp_alloc(pool, 5000, 0, other, &outside)); // beside the capture
        bp_block found = {.size = sizeof found};
        OK(bp_lookup(pool, turn ? second : first, &found));
        CHECK(found.is_private);
        OK(bp_lookup(pool, outside, &found));
        CHECK(!found.is_private);
        OK(bp_free_here(pool, outside));
        if (turn) OK(bp_alloc(pool, 5000, 0, captured, &result));
        if (turn) kernel(captured, result, 5000);
        OK(bp_free_here(pool, turn ? second : first));
        REFUSED(bp_private_end(pool, 3, 4), BP_NOT_SUBMITTED, "capture");
        REFUSED(bp_private_release(pool, 3, 4), turn ? BP_OK : BP_NOT_SUBMITTED, "");
        runs[turn] = end_capture(captured);
        OK(bp_private_end(pool, 3, 4));
    }
    CHECK(first == second && filters > 0 && done == 2);
    for (int turn = 0; turn < 2; turn++)
        CHECK(CALL(cuGraphLaunch, int (*)(void *, stream), runs[turn], replays) == 0);
    // The graphs and their memory go while a replay runs: nobody gets it before that has passed.
    for (int turn = 0; turn < 2; turn++)
        CHECK(CALL(cuGraphExecDestroy, int (*)(void *), runs[turn]) == 0);
    OK(bp_free_here(pool, result));
    OK(bp_private_release(pool, 3, 4));
    for (int turn = 0; turn < 4; turn++) {
        OK(bp_alloc(pool, 5000, 0, other, &outside));
        kernel(other, outside, 5000);
    }
    wait_for_all();
    CHECK(hazards() == 0);
    bp_figures figures = {.size = sizeof figures};
    OK(bp_stats(pool, &figures));
    CHECK(figures.private_bytes == 0);
}

// Captures whose streams nobody tells apart.
static void without_filters(void) {
    stream on = new_stream();
    void *at = NULL;
    OK(bp_private_begin(pool, 5, 6, NULL, NULL, NULL));
    REFUSED(bp_private_begin(pool, 7, 8, NULL, &captured, is_done), BP_NOT_SUBMITTED, "filter");
    CHECK(done == 3); // it is not needed
    OK(bp_private_begin(pool, 7, 8, filter, &captured, is_done));
    captured = on;
    begin_capture(on);
    OK(bp_alloc(pool, 5000, 0, on, &at));
    kernel(on, at, 5000);
    CHECK(CALL(cuGraphExecDestroy, int (*)(void *), end_capture(on)) == 0);
    OK(bp_free_here(pool, at));
    OK(bp_private_end(pool, 5, 6)); // the stream went to the filter that named it
    OK(bp_private_release(pool, 5, 6));
    bp_figures figures = {.size = sizeof figures};
    OK(bp_stats(pool, &figures));
    CHECK(figures.private_bytes > 0 && done == 3);
    OK(bp_private_end(pool, 7, 8));
    OK(bp_private_release(pool, 7, 8));
    OK(bp_stats(pool, &figures));
    CHECK(figures.private_bytes == 0 && done == 4);
}

// The functions of PyTorch and CuPy, over the one pool of each device.
static void plugs(const char *memory) {
    const bp_pool *one = NULL;
    REFUSED(bp_pool_if_made(NULL, 0, &one), BP_UNKNOWN, "device 0");
    OK(bp_set_devices("policy = 'pow2'\nreserved_limit = '16M'", memory));
    stream on = new_stream();
    void *at = NULL;
    // Calls that are refused, and that nobody makes again.
    bp_torch_begin(0, 9, 9, NULL, NULL, NULL);
    begin_capture(on);
    at = bp_torch_alloc(5000, 0, on);
    CHECK(at);
    kernel(on, at, 5000);
    bp_torch_free(at, 5000, 0, on);
    bp_torch_end(0, 9, 9);
    bp_torch_release(0, 9, 9);
    CHECK(CALL(cuGraphExecDestroy, int (*)(void *), end_capture(on)) == 0);
    OK(bp_pool_if_made(memory, 0, &one));
    bp_figures figures = {.size = sizeof figures};
    OK(bp_stats(one, &figures));
    CHECK(figures.private_bytes > 0);
    bp_torch_empty();
    OK(bp_stats(one, &figures));
    CHECK(figures.private_bytes == 0 && figures.reserved_bytes == 0);
    // A share is not above the limit of the settings.
    for (int share = 1; share >= 0; share--) {
        OK(bp_set_fraction(one, share, NULL));
        OK(bp_stats(one, &figures));
        CHECK(figures.limit_bytes == (share ? 16u << 20 : 0));
    }
    REFUSED(bp_set_fraction(one, -0.5, NULL), BP_INVALID, "-0.5");
    REFUSED(bp_set_fraction(one, 1.5, NULL), BP_INVALID, "1.5");
    OK(bp_set_fraction(one, 1, NULL));
    // Addresses that are none.
    size_t bytes = 7;
    CHECK(bp_torch_base(NULL, &bytes) == NULL && bytes == 7);
    bp_torch_record(NULL, on);
    bp_torch_record(&bytes, on);
    at = bp_cupy_malloc(NULL, 700, 0);
    CHECK(at && bp_torch_base((char *)at + 600, &bytes) == at && bytes >= 700);
    bp_cupy_free(NULL, at, 0);
    CHECK(bp_cupy_malloc(one, 700, 1) == NULL && strstr(why(), "device 1"));
    CHECK(bp_cupy_malloc(one, 64 << 20, 0) == NULL && strstr(why(), "limit"));
    OK(bp_stats(one, &figures));
    CHECK(figures.live_blocks == 0);
}

static void *on_a_thread(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed * 2654435761u + 1;
    void *at = NULL;
    for (int turn = 0; turn < 200; turn++) {
        random = random * 1664525u + 1013904223u;
        stream on = (stream)(uintptr_t)(turn % 2 ? 2 : 0);
        OK(bp_alloc(pool, 1 + random % 100000, 0, on, &at));
        if (turn == 100) use_device(0); // until then the thread has no context
        if (turn >= 100) kernel(on, at, 1 + random % 100000);
        OK(bp_free_here(pool, at));
        CHECK(bp_free_here(pool, &random) == BP_UNKNOWN);
    }
    return NULL;
}

// Threads without a context.
static void threads(void) {
    pthread_t all[8];
    for (uintptr_t at = 0; at < 8; at++) CHECK(pthread_create(&all[at], NULL, on_a_thread, (void *)at) == 0);
    for (int at = 0; at < 8; at++) CHECK(pthread_join(all[at], NULL) == 0);
    wait_for_all();
    CHECK(hazards() == 0);
}

int main(int count, char **arguments) {
    const char *memory = count > 1 ? arguments[1] : "cuda";
    use_device(0);
    calls_wait(false);
    const bp_pool *none = NULL;
    REFUSED(bp_pool_new(NULL, memory, 7, &none), BP_UNSUPPORTED, "cuDevicePrimaryCtxRetain");
    REFUSED(bp_pool_new(NULL, memory, -1, &none), BP_INVALID, "device -1");
    OK(bp_pool_new("policy = 'pow2'", memory, 0, &pool));
    void *at = NULL;
    REFUSED(bp_alloc(pool, (size_t)1 << 46, 0, NULL, &at), BP_OUT_OF_MEMORY, "64.00 TiB");
    REFUSED(bp_alloc(pool, 10, 4096, NULL, &at), BP_UNSUPPORTED, "alignment of 4096");
    streams();
    foreign(strcmp(memory, "cuda") == 0);
    graphs();
    without_filters();
    plugs(memory);
    threads();
    uint64_t given = 0;
    OK(bp_set_fraction(pool, 0.5, &given));
    OK(bp_trim(pool, 1, &given));
    OK(bp_make_room(pool, 1 << 20, NULL));
    OK(bp_pool_drop(pool));
    printf("%s: passed\n", memory);
    return 0;
}
