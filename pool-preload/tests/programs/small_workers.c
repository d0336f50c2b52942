// A worker that a program forks has few pages of the library for itself: a class of which few blocks are
// free needs none.
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { LIVE = 100000, SIZES = 2000, ROUNDS = 20, BLOCKS = 300, MOST_KIB = 128 };

// Returns the KiB of the library's data that no other process has.
static long private_kib(void) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    char line[512], access[8];
    long sum = 0, kib;
    int is_data = 0;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%*x-%*x %7s", access) == 1)
            is_data = access[1] == 'w' && strstr(line, "bucketpool");
        if (is_data && sscanf(line, "Private_Dirty: %ld", &kib) == 1) sum += kib;
    }
    CHECK(fclose(maps) == 0);
    return sum;
}

static void work(void) {
    for (int round = 0; round < ROUNDS; round++) {
        void *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) CHECK(blocks[i] = malloc(16 + i * i * 7 % (i % 10 ? 3000 : 40000)));
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
}

int main(void) {
    for (int i = 0; i < LIVE; i++) CHECK(malloc(16 + i % 200));
    for (int i = 0; i < SIZES; i++) free(malloc(16 + i * 33));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work();
        long kib = private_kib();
        if (kib > MOST_KIB) fprintf(stderr, "%ld KiB\n", kib);
        _exit(kib > MOST_KIB);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("done");
    return 0;
}
