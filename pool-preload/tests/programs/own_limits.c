// A program sets a limit on its addresses, by the way that its argument names, and then needs nearly all of them itself; or a child
// that borrows its memory sets one, and the program keeps what it has.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ROUNDS = 30 };

static const struct rlimit limit = {1ul << 30, 1ul << 30};
static volatile int ends;
static volatile long refused;

// MiB of addresses.
static long mapped(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    return pages / 256;
}

static void *limits(void *unused) {
    CHECK(prlimit(gettid(), RLIMIT_AS, &limit, NULL) == 0);
    return unused;
}

static void *forks(void *unused) {
    while (!ends) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, NULL, 0);
    }
    return unused;
}

static void *maps(void *unused) {
    while (!ends) {
        void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        refused += page == MAP_FAILED;
        if (page != MAP_FAILED) munmap(page, 4096);
    }
    return unused;
}

// In a child, beside a thread that does `work`.
static void limit_beside(void *(*work)(void *)) {
    pid_t child = fork();
    if (child == 0) {
        char *block = malloc(8 << 20);
        CHECK(block && memset(block, 1, 8 << 20));
        pthread_t thread, other;
        CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
        usleep(10000 + getpid() % 1000);
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        int error = pthread_create(&other, NULL, maps, NULL);
        ends = 1;
        _exit(error != 0 || refused != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "setrlimit";
    free(malloc(1000));
    long before = mapped();
    if (strcmp(way, "beside") == 0) {
        for (int i = 0; i < ROUNDS; i++) limit_beside(maps), limit_beside(forks);
        return puts("done") < 0;
    }
    if (strcmp(way, "vfork") == 0) {
        pid_t child = vfork();
        if (child == 0) {
            setrlimit(RLIMIT_AS, &limit);
            free(malloc(300 << 20));
            free(malloc(3ul << 30));
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child && mapped() >= before);
        return puts("done") < 0;
    }
    pthread_t thread;
    if (strcmp(way, "thread") == 0) {
        CHECK(pthread_create(&thread, NULL, limits, NULL) == 0 && pthread_join(thread, NULL) == 0);
    } else {
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    }
    CHECK(mmap(NULL, 850ul << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    return puts("done") < 0;
}
