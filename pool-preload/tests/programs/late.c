// A library that is loaded by `dlopen`: it has thread-local data, and allocates in its constructor.
#include <stdlib.h>
#include <string.h>

static __thread char local[512];

__attribute__((constructor)) static void start(void) {
    char *block = malloc(1 << 20);
    if (!block) abort();
    memset(block, 1, 1 << 20);
    memset(local, 1, sizeof local);
    free(block);
}
