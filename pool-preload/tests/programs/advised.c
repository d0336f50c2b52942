// Huge pages that a program advises for its arrays, as NumPy does, end with them.
#define _GNU_SOURCE
#include "memory.h"
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>

static char *blocks[12000];

static char *array(size_t bytes) {
    char *block = malloc(bytes);
    CHECK(block);
    size_t rest = 4096 - (size_t)block % 4096;
    madvise(block + rest, bytes - rest, MADV_HUGEPAGE);
    memset(block, 1, bytes);
    return block;
}

int main(void) {
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) blocks[i] = array((4 << 20) + (size_t)i * 40000);
        for (int i = 0; i < 100; i++) free(blocks[i * 7 % 100]);
    }
    malloc_trim(0);
    for (int i = 0; i < 12000; i++) {
        blocks[i] = malloc(80000);
        CHECK(blocks[i]);
        blocks[i][0] = 1;
    }
    CHECK(resident_kib() < 200 << 10);
    return puts("done") < 0;
}
