// A program limits its own addresses while it runs (RLIMIT_AS), by the way that its argument names; "sandbox" does it once it may
// install a filter of system calls. It goes on as with the C library: threads and libraries begin, blocks grow and keep their
// contents, and what is above the limit is refused.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static int by_setrlimit(const struct rlimit *limit) { return setrlimit(RLIMIT_AS, limit); }
static int by_prlimit(const struct rlimit *limit) { return prlimit(getpid(), RLIMIT_AS, limit, NULL); }
static int by_syscall(const struct rlimit *limit) { return (int)syscall(SYS_prlimit64, 0, RLIMIT_AS, limit, NULL); }

static void *allocates(void *unused) {
    free(malloc(100000));
    return unused;
}

// Two arrays that grow in turns, so that neither can grow in place.
static void grow(size_t from, size_t to) {
    char *arrays[2] = {malloc(from), malloc(from)};
    CHECK(arrays[0] && arrays[1]);
    for (int i = 0; i < 2; i++) memset(arrays[i], i + 1, from);
    for (size_t bytes = from; bytes < to; bytes += bytes / 3)
        for (int i = 0; i < 2; i++) {
            char *grown = realloc(arrays[i], bytes + bytes / 3);
            CHECK(grown && grown[0] == i + 1 && grown[from / 2] == i + 1 && grown[from - 1] == i + 1);
            if (bytes > from) CHECK(grown[bytes - 1] == i + 3);
            arrays[i] = grown;
            grown[bytes + bytes / 3 - 1] = (char)(i + 3);
        }
    for (int i = 0; i < 2; i++) free(arrays[i]);
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "setrlimit";
    char *first = malloc(5 << 20);
    CHECK(first);
    memset(first, 1, 5 << 20);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit = before;
    limit.rlim_cur = 2ul << 30;
    int is_raw = strcmp(way, "syscall") == 0;
    if (strcmp(way, "sandbox") == 0) CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK((is_raw ? by_syscall : strcmp(way, "prlimit") == 0 ? by_prlimit : by_setrlimit)(&limit) == 0);
    grow(3 << 20, 40 << 20);
    for (int round = 0; round < 20; round++) grow(200000, 3 << 20);
    void *volatile large = malloc(3ul << 30);
    CHECK(!large);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocates, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(dlopen("libutil.so.1", RTLD_NOW) || dlopen("libBrokenLocale.so.1", RTLD_NOW));
    // Nearly all of the limit, in one block: nothing is kept back.
    large = malloc(1700ul << 20);
    CHECK(large);
    free(large);
    CHECK(first[0] == 1 && first[(5 << 20) - 1] == 1);
    limit.rlim_cur = before.rlim_cur;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    large = malloc(3ul << 30);
    CHECK(large);
    free(large);
    free(first);
    grow(3 << 20, 40 << 20);
    return puts("done") < 0;
}
