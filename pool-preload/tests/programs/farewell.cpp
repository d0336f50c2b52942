// Allocates and frees in what runs at the end: destructors of static and thread-local objects, handlers of
// `atexit`, destructors of keys, and those of a library that is unloaded.
#include "check.h"
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

static void allocate() {
    std::vector<std::unique_ptr<std::string>> texts;
    for (int i = 0; i < 200; i++) texts.push_back(std::make_unique<std::string>(1 + i * i * 5, 'a'));
    for (const auto &text : texts) CHECK(text->back() == 'a');
}

struct Late {
    std::string kept = std::string(100000, 'b');
    ~Late() {
        CHECK(kept[99999] == 'b');
        allocate();
    }
};

static Late late;
static thread_local Late of_thread;
static pthread_key_t key;
static int rounds;

static void at_end_of_thread(void *block) {
    free(block);
    allocate();
    if (rounds++ < 3) CHECK(pthread_setspecific(key, malloc(70000)) == 0);
}

static void say() {
    allocate();
    CHECK(puts("done") >= 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && atexit(say) == 0 && pthread_key_create(&key, at_end_of_thread) == 0);
    for (int i = 0; i < 20; i++) {
        std::thread([] {
            of_thread.kept[1] = 'c';
            CHECK(pthread_setspecific(key, malloc(10)) == 0);
        }).join();
        void *loaded = dlopen(arguments[1], RTLD_NOW);
        CHECK(loaded && dlclose(loaded) == 0);
    }
    of_thread.kept[2] = late.kept[2];
}
