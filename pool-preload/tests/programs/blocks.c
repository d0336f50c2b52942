// Takes and frees a block of 4 MiB 64 times.
#include "check.h"
#include <stdlib.h>
#include <string.h>

int main(void) {
    for (int i = 0; i < 64; i++) {
        char *block = malloc(4 << 20);
        CHECK(block);
        memset(block, 1, 4 << 20);
        free(block);
    }
    return puts("done") < 0;
}
