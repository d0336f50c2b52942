// A library that is loaded by `dlopen`: its constructor waits for a thread that makes the first request
// of another library.
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static size_t (*work)(size_t, size_t);

static void *first(void *none) {
    if (work(10, 100) != 10 * 100) abort();
    return none;
}

__attribute__((constructor)) static void start(void) {
    void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    if (!plugin) abort();
    work = (size_t(*)(size_t, size_t))dlsym(plugin, "work");
    pthread_t thread;
    if (!work || pthread_create(&thread, NULL, first, NULL) || pthread_join(thread, NULL)) abort();
    dlclose(plugin);
}
