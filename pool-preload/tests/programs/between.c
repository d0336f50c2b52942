// An allocator that lies between the preloaded library and the C library, and serves nobody: who
// asks it about a block of the C library is wrong.
#include <stddef.h>
#include <stdlib.h>

size_t malloc_usable_size(void *block) {
    (void)block;
    abort();
}

int malloc_trim(size_t pad) {
    (void)pad;
    abort();
}

// `operator new(bytes)` and `operator new[](bytes, nothrow)`
void *_Znwm(size_t bytes) {
    (void)bytes;
    abort();
}

void *_ZnamRKSt9nothrow_t(size_t bytes, const void *nothrow) {
    (void)bytes;
    (void)nothrow;
    abort();
}
