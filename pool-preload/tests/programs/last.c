// Threads whose first and only call of the family is in the destructor of a key.
#include "check.h"
#include <pthread.h>
#include <stdlib.h>

static pthread_key_t key;

static void *work(void *block) {
    CHECK(pthread_setspecific(key, block) == 0);
    return NULL;
}

int main(void) {
    CHECK(pthread_key_create(&key, free) == 0);
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        void *block = malloc(100);
        CHECK(block && pthread_create(&thread, NULL, work, block) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    return puts("done") < 0;
}
