// A thread that is to be cancelled allocates: `malloc` and `free` are no cancellation points.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { THREADS = 8, STEPS = 20000 };
static pthread_barrier_t barrier;
static int finished[THREADS];

static void *work(void *number) {
    pthread_barrier_wait(&barrier);
    // Lengths that many threads share, so that they wait for each other.
    for (int step = 0; step < STEPS; step++) free(malloc((64 << 10) + 4096 * (step % 97)));
    finished[(size_t)number] = 1;
    pthread_testcancel();
    CHECK(!"cancelled");
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_cancel(threads[i]) == 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(finished[i]);
    }
    return puts("done") < 0;
}
