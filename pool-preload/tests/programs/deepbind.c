// Blocks of a library that is bound to the C library's malloc may be resized and freed by the program, and
// by itself.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library);
    void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(library, "bound_allocate");
    void (*release)(void *) = (void (*)(void *))dlsym(library, "bound_free");
    CHECK(allocate && release);
    for (size_t bytes = 10; bytes < 40 << 20; bytes *= 7) {
        char *block = allocate(bytes), *other = allocate(bytes);
        CHECK(block && other && malloc_usable_size(block) >= bytes);
        release(other);
        block = realloc(block, 2 * bytes);
        CHECK(block && block[0] == 5 && block[bytes - 1] == 5);
        free(block);
        free(allocate(bytes));
    }
    return puts("done") < 0;
}
