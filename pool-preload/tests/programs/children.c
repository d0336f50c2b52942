// Memory goes back in the children of _Fork and of a raw clone, which no handler of a fork sees, and in
// the parent of a vfork. A child of fork begins without what its parent has cached.
#define _GNU_SOURCE
#include "memory.h"
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *blocks[64];

static void allocate(void) {
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(4 << 20);
        CHECK(blocks[i]);
        memset(blocks[i], 1, 4 << 20);
    }
}

static void release(void) {
    for (int i = 0; i < 64; i++) free(blocks[i]);
}

static void join(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void frees(void) {
    allocate();
    release();
    wait_until_below(64 << 10);
    _exit(0);
}

int main(void) {
    allocate(); // and so the library has its thread
    release();
    wait_until_below(64 << 10);
    pid_t child = _Fork();
    if (child == 0) frees();
    join(child);
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) frees();
    join(child);
    allocate();
    release();
    child = fork();
    if (child == 0) {
        CHECK(resident_kib() < 64 << 10);
        _exit(0);
    }
    join(child);
    malloc_trim(0);
    return puts("done") < 0;
}
