// Threads hand blocks to each other, end while they hold some, and fork while others allocate.
#define _GNU_SOURCE
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { THREADS = 6, ROUNDS = 4000, PLACES = 32 };
static _Atomic(char *) places[PLACES];
static pthread_key_t key;
static atomic_int ended;

static uint32_t next(uint32_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    return *random ^= *random << 5;
}

static char *allocate(uint32_t *random) {
    size_t bytes = next(random) % 3 ? 64 * 1024 + next(random) % (1 << 20) : 1 + next(random) % 65536;
    char *block = malloc(bytes + 8);
    CHECK(block);
    memcpy(block, &bytes, sizeof bytes);
    block[bytes + 7] = (char)bytes;
    return block;
}

static void release(char *block) {
    size_t bytes;
    if (!block) return;
    memcpy(&bytes, block, sizeof bytes);
    CHECK(block[bytes + 7] == (char)bytes && malloc_usable_size(block) >= bytes + 8);
    free(block);
}

// Runs when a thread ends, after its other data is gone.
static void at_end(void *block) {
    release(block);
    uint32_t random = 7;
    release(allocate(&random));
    ended++;
}

static void *work(void *number) {
    uint32_t random = 2654435761u * (uint32_t)(uintptr_t)number;
    pthread_setspecific(key, allocate(&random));
    for (int round = 0; round < ROUNDS; round++)
        release(atomic_exchange(&places[next(&random) % PLACES], allocate(&random)));
    return NULL;
}

static void in_child(void) {
    uint32_t random = 99;
    for (int round = 0; round < 50; round++) {
        char *block = allocate(&random);
        block = realloc(block, malloc_usable_size(block) + (1 << 20));
        CHECK(block);
        free(block);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, (void *)1) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    _exit(0);
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_key_create(&key, at_end);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) in_child();
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(ended == THREADS);
    for (int i = 0; i < PLACES; i++) release(places[i]);
    return puts("done") < 0;
}
