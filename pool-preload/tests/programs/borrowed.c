// A child of vfork that allocates before it ends has no thread, and its parent gets one. With an argument
// there is no library, and so no thread.
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

int main(int count, char **arguments) {
    (void)arguments;
    pid_t child = vfork();
    if (child == 0) {
        allocate();
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 64; i++) free(blocks[i]);
    struct timespec start, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    while (count == 1 && kib("status", "Threads") < 2) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - start.tv_sec < 60);
        // The thread starts in a call of the program, which the compiler must not drop.
        char *volatile one = malloc(9 << 20), *volatile other = malloc(10 << 20);
        free(one), free(other);
    }
    wait_until_below(64 << 10);
    return puts("done") < 0;
}
