// A library that is loaded by `dlopen`: its constructor waits for a thread that allocates.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *work(void *none) {
    (void)none;
    char *block = malloc(100);
    if (!block) abort();
    memset(block, 1, 100);
    free(block);
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL)) abort();
}
