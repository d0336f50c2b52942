// Frees of what is no block, or is free already, end the program.
#include "check.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void ends(void (*work)(char *)) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        char *block = malloc(1 << 20);
        memset(block, 1, 1 << 20);
        work(block);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static char *volatile other;

static void inside(char *block) { other = block + 64, free(other); }
static void inner_page(char *block) { other = block + 7 * 4096, free(other); }
static void behind(char *block) { other = block + (1L << 35), free(other); }
static void twice(char *block) { other = block, free(block), free(other); }

static void twice_with_neighbours(char *block) {
    char *blocks[20];
    for (int i = 0; i < 20; i++) blocks[i] = malloc(1 << 20);
    other = block, free(block);
    for (int i = 0; i < 20; i++) free(blocks[i]);
    free(other);
}

static void after_a_move(char *block) {
    char *wall = malloc(1 << 20);
    other = block;
    char *moved = realloc(block, 64 << 20);
    if (moved == other || !wall) _exit(1);
    free(other);
}

int main(void) {
    ends(inside), ends(inner_page), ends(behind), ends(twice), ends(twice_with_neighbours), ends(after_a_move);
    return puts("done") < 0;
}
