// A library that the program is linked with, whose constructor runs before that of the preloaded one. Its
// handler runs after that one's before a fork, and takes a lock under which another thread allocates.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) {
    if (pthread_atfork(hold, release, release)) abort();
}

void allocate_under_lock(size_t bytes) {
    hold();
    char *block = malloc(bytes);
    if (!block) abort();
    memset(block, 1, bytes);
    free(block);
    release();
}
