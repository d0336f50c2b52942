// The main thread ends before a thread that uses large blocks, and the process ends with that one.
#include "check.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *work(void *nothing) {
    char *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = malloc(4 << 20);
        CHECK(blocks[i]);
        memset(blocks[i], 1, 4 << 20);
    }
    for (int i = 0; i < 8; i++) free(blocks[i]);
    CHECK(puts("done") >= 0);
    return nothing;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}
