// Forks while another thread allocates under a lock that a fork handler takes.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

void allocate_under_lock(size_t bytes);
static atomic_int is_done;
static atomic_long rounds;

static void *work(void *nothing) {
    for (size_t i = 0; !is_done; i++) {
        allocate_under_lock(100000 + 4096 * (i % 50));
        rounds++;
    }
    return nothing;
}

int main(void) {
    alarm(100); // ends a process that stands still
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    for (int i = 0; i < 1000; i++) {
        long before = rounds;
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            allocate_under_lock(300000);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        while (rounds == before) sched_yield();
    }
    is_done = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    return puts("done") < 0;
}
