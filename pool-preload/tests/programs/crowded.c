// Arrays that grow in turns have few mappings. Where the process may have no mapping more, a block that grows is copied or
// refused, and keeps its contents.
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ARRAYS = 400, MAPPINGS = 1 << 20 };

static int mappings(void) {
    static char text[65536];
    int file = open("/proc/self/maps", O_RDONLY), count = 0;
    CHECK(file >= 0);
    for (ssize_t bytes; (bytes = read(file, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < bytes; i++) count += text[i] == '\n';
    close(file);
    return count;
}

static void grow_in_turns(void) {
    static char *arrays[ARRAYS];
    int before = mappings();
    for (size_t bytes = 1 << 20; bytes < 8 << 20; bytes += bytes / 3)
        for (int i = 0; i < ARRAYS; i++) {
            char *grown = realloc(arrays[i], bytes);
            CHECK(grown);
            if (arrays[i]) CHECK(grown[0] == (char)i);
            arrays[i] = grown;
            grown[0] = (char)i;
            grown[bytes - 1] = 1;
        }
    CHECK(mappings() - before < 4 * ARRAYS);
    for (int i = 0; i < ARRAYS; i++) {
        CHECK(arrays[i][0] == (char)i);
        free(arrays[i]);
    }
}

static void *single[MAPPINGS];

int main(void) {
    grow_in_turns();
    enum { BYTES = 5 << 20 };
    char *block = malloc(BYTES), *behind = malloc(BYTES), *freed = malloc(3 * BYTES);
    CHECK(block && behind && freed);
    for (int i = 0; i < BYTES; i++) block[i] = (char)(i / 4096 * 7 + i);
    behind[0] = 1;
    memset(freed, 1, 3 * BYTES);
    int count = 0;
    // Neighbours that differ are two mappings.
    for (; count < MAPPINGS; count++) {
        int access = count & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
        single[count] = mmap(NULL, 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (single[count] == MAP_FAILED) break;
    }
    if (count == MAPPINGS) return puts("done") < 0; // this system has room for more
    free(freed);
    // A few short of all, each number in turn: refusals come at other places.
    for (int spare = 0; spare < 12; spare++) {
        char *grown = realloc(block, 2 * BYTES + (size_t)spare * 65536);
        if (grown) block = grown;
        for (int i = 0; i < BYTES; i++) CHECK(block[i] == (char)(i / 4096 * 7 + i));
        char *next = malloc(BYTES);
        if (next) memset(next, 2, BYTES);
        char *shrunk = realloc(block, BYTES);
        if (shrunk) block = shrunk;
        free(next);
        CHECK(munmap(single[--count], 4096) == 0);
    }
    while (count > 0) munmap(single[--count], 4096);
    block = realloc(block, 4 * BYTES);
    CHECK(block);
    for (int i = 0; i < BYTES; i++) CHECK(block[i] == (char)(i / 4096 * 7 + i));
    free(block);
    free(behind);
    return puts("done") < 0;
}
