// Frees of what is no block, or is free already, end the program.
#include "check.h"
#include <malloc.h>
#include <pthread.h>
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

static void small_twice(char *block) {
    (void)block;
    other = malloc(100), free(other), free(other);
}

static void *free_thrice(void *small) {
    other = malloc(100);
    free(other), free(small), free(other);
    return NULL;
}

// Blocks of a thread that has ended go back to their pages.
static void small_in_a_thread(char *block) {
    (void)block;
    pthread_t thread;
    for (int i = 0; i < 100; i++)
        if (pthread_create(&thread, NULL, free_thrice, malloc(100)) || pthread_join(thread, NULL)) _exit(1);
    malloc_trim(0);
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
    ends(small_twice), ends(small_in_a_thread);
    return puts("done") < 0;
}
