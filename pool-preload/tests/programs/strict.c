// A program whose thread may only read, write and end (SECCOMP_MODE_STRICT) goes on to use the blocks that are there, while much
// is free.
#define _GNU_SOURCE
#include "check.h"
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { FREED = 1000, BLOCKS = 100 };

// Volatile: a compiler drops blocks that are only freed.
static char *volatile blocks[BLOCKS];

static void use(void) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(100);
        blocks[i][99] = 1;
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

int main(void) {
    static char *freed[FREED];
    for (int i = 0; i < FREED; i++) CHECK((freed[i] = malloc(60000)) && memset(freed[i], 1, 60000));
    for (int i = 0; i < FREED; i++) free(freed[i]);
    use();
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    // Some seconds, so that the time comes at which memory goes back.
    for (int round = 0; round < 500000; round++) use();
    if (write(1, "done\n", 5) == 5) syscall(SYS_exit, 0);
    syscall(SYS_exit, 1);
}
