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

// A stream of another device, and frees on it: the block is freed behind its own stream.
static void foreign(void) {
    use_device(1);
    stream theirs = new_stream();
    use_device(0);
    stream ours = new_stream();
    void *at = NULL, *next = NULL;
    REFUSED(bp_alloc(pool, 100, 0, theirs, &at), BP_FOREIGN, "another context");
    OK(bp_alloc(pool, 4000, 0, ours, &at));
    kernel(ours, at, 4000);
    REFUSED(bp_record(pool, at, theirs), BP_FOREIGN, "another context");
    CHECK(bp_free(pool, at, theirs) == BP_FOREIGN);
    OK(bp_alloc(pool, 4000, 0, NULL, &next));
    kernel(NULL, next, 4000);
    OK(bp_free_here(pool, next));
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
    foreign();
    graphs();
    threads();
    uint64_t given = 0;
    OK(bp_set_fraction(pool, 0.5, &given));
    OK(bp_trim(pool, 1, &given));
    OK(bp_make_room(pool, 1 << 20, NULL));
    OK(bp_pool_drop(pool));
    printf("%s: passed\n", memory);
    return 0;
}
