// A library whose allocator is a Tcache is loaded, used and closed again and again. It stays at its
// place, so threads that have used it may end, its own thread may go on, and no round takes addresses.
#define _GNU_SOURCE
#include "memory.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { ROUNDS = 200, THREADS = 4, LARGE = 1 << 20 };

static size_t (*work)(size_t, size_t);
static pthread_barrier_t used, closed;

static void *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    work = (size_t(*)(size_t, size_t))dlsym(library, "work");
    CHECK(work);
    return library;
}

static void *use(void *unused) {
    CHECK(work(1000, 100) == 1000 * 100);
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&closed);
    return unused;
}

static long threads_now(void) { return kib("status", "Threads"); }

int main(int count, char **arguments) {
    CHECK(count == 4);
    alarm(120);
    // The first request comes from another thread, while this one has the lock of the dynamic linker.
    CHECK(setenv("PLUGIN", arguments[1], 1) == 0 && dlopen(arguments[3], RTLD_NOW | RTLD_LOCAL));
    pthread_barrier_init(&used, 0, THREADS + 1);
    pthread_barrier_init(&closed, 0, THREADS + 1);
    // Threads that have used the library end when it is closed.
    pthread_t threads[THREADS];
    void *library = load(arguments[1]);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], 0, use, 0) == 0);
    pthread_barrier_wait(&used);
    CHECK(dlclose(library) == 0);
    pthread_barrier_wait(&closed);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], 0) == 0);
    // With so many blocks the library has a thread, if it may, which gives them back and ends.
    library = load(arguments[1]);
    CHECK(work(64, LARGE) == 64 * LARGE && threads_now() == atoi(arguments[2]));
    CHECK(dlclose(library) == 0);
    while (threads_now() > 1) usleep(1000);
    // Each round has the same addresses.
    long before = kib("status", "VmSize");
    size_t (*first)(size_t, size_t) = work;
    for (int round = 0; round < ROUNDS; round++) {
        library = load(arguments[1]);
        CHECK(work == first && work(10, 100) == 10 * 100);
        CHECK(dlclose(library) == 0);
    }
    CHECK(kib("status", "VmSize") - before < 1 << 20);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dlclose(load(arguments[1])) == 0 && work(10, LARGE) == 10 * LARGE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return puts("done") < 0;
}
