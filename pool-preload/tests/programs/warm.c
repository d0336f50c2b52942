// A freed block serves the next request of its length without a page fault, and a block that moves has room
// for more. What the C library tells of its own blocks leaves those of the heap out.
#include "memory.h"
#include <malloc.h>
#include <stdlib.h>
#include <sys/resource.h>

static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

static void use(size_t bytes) {
    char *volatile block = malloc(bytes); // or the compiler drops what is written to it
    CHECK(block);
    memset(block, 1, bytes);
    free(block);
}

int main(void) {
    static const size_t SIZES[] = {100, 5000, 60000, 70000, 1 << 20, 20 << 20};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        use(SIZES[i]);
        long before = faults();
        for (int round = 0; round < 20; round++) use(SIZES[i]);
        CHECK(faults() - before < 20); // of the program's own: reading figures, for instance
    }
    char *first = malloc(1 << 20), *wall = malloc(1 << 20);
    CHECK(first && wall);
    size_t before = (size_t)first;
    char *moved = realloc(first, 16 << 20);
    CHECK(moved && ((size_t)moved == before || malloc_usable_size(moved) >= 18 << 20));
    CHECK(mallinfo2().uordblks + mallinfo2().hblkhd < 4 << 20);
    free(moved), free(wall);
    return puts("done") < 0;
}
