// A library that is loaded with RTLD_DEEPBIND: its malloc is the C library's.
#include <stdlib.h>
#include <string.h>

void *bound_allocate(size_t bytes) {
    char *block = malloc(bytes);
    if (block) memset(block, 5, bytes);
    return block;
}

void bound_free(void *block) { free(block); }
