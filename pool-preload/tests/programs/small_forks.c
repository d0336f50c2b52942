// A fork of a small program copies few pages of the library, in the parent and in the child.
#include "check.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { FORKS = 100, SIZES = 50, OF_PARENT = 4, OF_CHILD = 24 };

static long faults(int who) {
    struct rusage usage;
    CHECK(getrusage(who, &usage) == 0);
    return usage.ru_minflt;
}

static void fork_once(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    // The lists that all threads share are used, and less is free than a child gives back.
    for (int size = 0; size < SIZES; size++) {
        void *blocks[20];
        for (int i = 0; i < 20; i++) CHECK(blocks[i] = malloc(size * 100 + 1));
        for (int i = 0; i < 20; i++) free(blocks[i]);
    }
    fork_once();
    long parent = faults(RUSAGE_SELF), children = faults(RUSAGE_CHILDREN);
    for (int i = 0; i < FORKS; i++) fork_once();
    parent = (faults(RUSAGE_SELF) - parent) / FORKS;
    children = (faults(RUSAGE_CHILDREN) - children) / FORKS;
    if (parent > OF_PARENT || children > OF_CHILD) fprintf(stderr, "%ld and %ld\n", parent, children);
    CHECK(parent <= OF_PARENT && children <= OF_CHILD);
    puts("done");
    return 0;
}
