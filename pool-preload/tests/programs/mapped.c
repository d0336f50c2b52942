// A program maps shared memory over pages inside of its own blocks, and frees the blocks as they are. What is allocated there next
// has zeroes where it should, and keeps its contents.
#define _GNU_SOURCE
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MIB = 1 << 20, PAGE = 4096 };

static int file;

// Frees a block of which a part is mapped over.
static void free_mapped(size_t bytes, int is_written) {
    char *block = malloc(bytes);
    CHECK(block);
    if (is_written) memset(block, 5, bytes);
    char *inside = block + bytes / 3;
    inside += PAGE - (unsigned long)inside % PAGE;
    CHECK(mmap(inside, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == inside);
    free(block);
}

static void fill_file(void) {
    char *bytes = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(bytes != MAP_FAILED);
    memset(bytes, 7, MIB);
    munmap(bytes, MIB);
}

int main(void) {
    file = memfd_create("shared", 0);
    CHECK(file >= 0 && ftruncate(file, MIB) == 0);
    fill_file();
    free_mapped(8 * MIB, 0);
    char *block = calloc(8, MIB);
    CHECK(block);
    for (int i = 0; i < 8 * MIB; i++) CHECK(block[i] == 0);
    free(block);
    // A block of zeroes that moves there.
    fill_file();
    char *sparse = calloc(2, MIB);
    CHECK(sparse);
    memset(sparse, 1, PAGE);
    void *wall = malloc(100000);
    free_mapped(3 * MIB, 1);
    sparse = realloc(sparse, 5 * MIB / 2);
    CHECK(sparse && wall);
    for (int i = 0; i < 2 * MIB; i++) CHECK(sparse[i] == (i < PAGE));
    free(sparse);
    free(wall);
    return puts("done") < 0;
}
