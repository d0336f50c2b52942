// A library that is loaded and unloaded: it allocates in its constructor, in a function, and has memory of
// its thread; its destructor frees.
#include <stdlib.h>
#include <string.h>

static __thread char local[512];
static char *kept, *last;

__attribute__((constructor)) static void start(void) {
    kept = malloc(300000);
    if (kept) memset(kept, 1, 1000);
}

__attribute__((destructor)) static void end(void) {
    free(kept);
    free(last);
}

int loaded_work(int bytes) {
    free(last);
    last = malloc((size_t)bytes);
    if (last) memset(last, 2, (size_t)bytes);
    memset(local, 1, sizeof local);
    return last ? last[bytes - 1] : 2;
}
