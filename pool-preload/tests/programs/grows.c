// A block of 500 MiB grows 20 times by 1 MiB.
#include "check.h"
#include <stdlib.h>

int main(void) {
    char *block = malloc(500 << 20);
    CHECK(block);
    block[0] = 7;
    for (size_t mib = 501; mib <= 520; mib++) {
        block = realloc(block, mib << 20);
        CHECK(block && block[0] == 7);
        block[(mib << 20) - 1] = 1;
    }
    return puts("done") < 0;
}
