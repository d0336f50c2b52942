// A program without the library's thread, also with much memory. With an argument it ends its main thread
// while blocks leak, and then its last one.
#include "memory.h"
#include <pthread.h>
#include <stdlib.h>

static void use(int is_leaking) {
    for (int i = 0; i < 16; i++) {
        char *volatile block = malloc(4 << 20);
        CHECK(block);
        memset(block, 1, 4 << 20);
        if (!is_leaking) free(block);
    }
}

static void *leak(void *nothing) {
    use(1);
    CHECK(puts("done") >= 0);
    return nothing;
}

int main(int count, char **arguments) {
    (void)arguments;
    use(0), use(0);
    CHECK(kib("status", "Threads") == 1);
    if (count == 1) return puts("done") < 0;
    alarm(60); // ends a process that stands still
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, leak, NULL) == 0);
    pthread_exit(NULL);
}
