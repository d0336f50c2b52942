// Leaks a block of 1234 bytes.
#include "check.h"
#include <stdlib.h>
#include <string.h>

int main(void) {
    char *volatile block = malloc(1234);
    CHECK(block);
    memset(block, 1, 1234);
    // What the stack and the registers still have of the address would hide the leak.
    block = malloc(10);
    CHECK(block);
    free(block);
    block = NULL;
    return puts("done") < 0;
}
