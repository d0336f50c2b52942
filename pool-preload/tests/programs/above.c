// A block above the cached limit is served by the pages of the last one.
#include "memory.h"
#include <stdlib.h>

int main(void) {
    for (int round = 0; round < 8; round++) {
        char *volatile block = malloc(65 << 20); // or the compiler drops what is written to it
        CHECK(block);
        memset(block, 1, 65 << 20);
        CHECK(resident_kib() < 80 << 10);
        free(block);
    }
    return puts("done") < 0;
}
