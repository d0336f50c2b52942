// A child of vfork that allocates before it ends has no thread, and its parent gets one.
#define _GNU_SOURCE
#include "memory.h"
#include <stdlib.h>
#include <sys/wait.h>

static char *blocks[64];

static void allocate(void) {
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(4 << 20);
        if (!blocks[i]) _exit(1);
        memset(blocks[i], 1, 4 << 20);
    }
}

int main(void) {
    pid_t child = vfork();
    if (child == 0) {
        allocate();
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 64; i++) free(blocks[i]);
    // The library tries again after ten seconds, in a call of the program.
    struct timespec start, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    while (resident_kib() > 64 << 10) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - start.tv_sec < 60);
        char *block = malloc(9 << 20);
        CHECK(block);
        block[0] = 1;
        free(block);
    }
    return puts("done") < 0;
}
