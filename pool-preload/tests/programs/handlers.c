// Allocates in fork handlers, in a child of `fork`, and in the constructors of libraries that are loaded
// late, one of which waits for a thread; a child of `vfork` starts another program.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void allocate(void) {
    for (size_t bytes = 50000; bytes < 3000000; bytes += 77777) {
        char *block = malloc(bytes);
        CHECK(block);
        memset(block, 1, bytes);
        block = realloc(block, 2 * bytes);
        CHECK(block && block[bytes - 1] == 1);
        free(block);
    }
}

__attribute__((constructor)) static void early(void) {
    allocate();
    CHECK(pthread_atfork(allocate, allocate, allocate) == 0);
}

int main(int count, char **arguments) {
    CHECK(count > 2 && dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL));
    CHECK(dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL));
    CHECK(pthread_atfork(allocate, allocate, allocate) == 0);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            allocate();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return puts("done") < 0;
}
