// A signal handler forks while its own thread, the only one, is anywhere in malloc and free. The child
// ends there, or goes on after it, and so does its parent.
#include "check.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { FORKS = 300, LIVE = 2000, GOES_ON = 20 };

static volatile sig_atomic_t forks_made, is_child;
static unsigned char *blocks[LIVE];
static unsigned sizes[LIVE], random_state = 1;

static unsigned choose(unsigned end) {
    random_state = random_state * 1103515245 + 12345;
    return (random_state >> 8) % end;
}

static void forks(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0) {
        if (forks_made % GOES_ON != 0) _exit(0);
        alarm(20);
        is_child = 1;
        return;
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    forks_made++;
}

static void work(int operations) {
    for (int i = 0; i < operations; i++) {
        unsigned k = choose(LIVE);
        if (blocks[k]) CHECK(blocks[k][0] == k % 251 && blocks[k][sizes[k] - 1] == k % 251);
        free(blocks[k]);
        sizes[k] = 16 + choose(choose(100) ? 3000 : 300000);
        blocks[k] = malloc(sizes[k]);
        CHECK(blocks[k]);
        blocks[k][0] = blocks[k][sizes[k] - 1] = k % 251;
    }
}

int main(void) {
    struct sigaction action = {.sa_handler = forks, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    alarm(120);
    for (int i = 0; i < FORKS; i++) {
        struct itimerspec soon = {{0, 0}, {0, 1000 + choose(200000)}};
        CHECK(timer_settime(timer, 0, &soon, 0) == 0);
        while (forks_made == i && !is_child) work(20);
        if (is_child) {
            work(2000);
            _exit(0);
        }
    }
    return puts("done") < 0;
}
