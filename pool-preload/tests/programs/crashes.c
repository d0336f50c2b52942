// A free of a block that is free already ends the program, whose handler of the signal may fork, to run
// a program that prints a trace, and allocate, though it should not.
#include "check.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { BLOCKS = 4000, WELL = 42 };

static char *blocks[BLOCKS];

// Blocks of all sizes, those of the class that was freed twice among them.
static void allocate(void) {
    for (int i = 0; i < BLOCKS; i++) {
        char *block = malloc(16 + i * 25 % 70000);
        CHECK(block);
        memset(block, 1, 16);
    }
}

static void allocates(int signal) {
    (void)signal;
    allocate();
    _exit(WELL);
}

static void forks(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0) {
        allocate();
        _exit(WELL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// Frees all blocks but some, so that no page is free as a whole, and then the same ones again.
static void free_twice(size_t bytes) {
    for (int i = 0; i < BLOCKS; i++) CHECK(blocks[i] = malloc(bytes));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < BLOCKS; i++)
            if (i % 50) free(blocks[i]);
}

static void ends_by(void (*handler)(int), size_t bytes) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        alarm(20);
        signal(SIGABRT, handler);
        free_twice(bytes);
        _exit(2); // not found
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == WELL);
}

int main(void) {
    size_t sizes[] = {100, 3000, 100000};
    for (int i = 0; i < 3; i++) ends_by(forks, sizes[i]), ends_by(allocates, sizes[i]);
    return puts("done") < 0;
}
