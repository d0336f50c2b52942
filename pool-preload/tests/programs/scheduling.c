// The library's thread runs as the main thread does, whatever the thread that caused it does, and its
// stack is small, whatever the program's thread-local variables and `ulimit -s` are.
#define _GNU_SOURCE
#include "tasks.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { SYS_NICE = 23 };

// More than the stack of the library's thread.
static __thread char local[300000];

static cpu_set_t processors_of(int task) {
    cpu_set_t set;
    CHECK(sched_getaffinity(task, sizeof set, &set) == 0);
    return set;
}

static void *work(void *nothing) {
    memset(local, 1, sizeof local);
    // The last processor alone, and real time; if that is not permitted, another policy.
    cpu_set_t all = processors_of(getpid()), one;
    CPU_ZERO(&one);
    for (int cpu = CPU_SETSIZE - 1; !CPU_COUNT(&one); cpu--)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    struct sched_param real_time = {50}, none = {0};
    int raised = getpriority(PRIO_PROCESS, 0) + 3;
    raised = raised > 19 ? 19 : raised;
    CHECK(setpriority(PRIO_PROCESS, 0, raised) == 0);
    if (sched_setscheduler(0, SCHED_FIFO, &real_time)) CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);

    int thread = wait_for_thread();
    if (bits_of(getpid(), "Seccomp") == 2) return nothing; // it makes no further call there
    cpu_set_t its = processors_of(thread);
    CHECK(CPU_EQUAL(&its, &all));
    int policy = sched_getscheduler(getpid());
    int ordinary = policy == SCHED_BATCH || policy == SCHED_IDLE ? policy : SCHED_OTHER;
    CHECK(sched_getscheduler(thread) == ordinary);
    // To raise a priority needs a privilege.
    int nice = getpriority(PRIO_PROCESS, thread), may_raise = bits_of(getpid(), "CapEff") >> SYS_NICE & 1;
    CHECK(nice == getpriority(PRIO_PROCESS, getpid()) || (!may_raise && nice == raised));
    return nothing;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    size_t most = strtoull(arguments[1], NULL, 10);
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 1 << 20) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, &small, work, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    char line[512], access[5];
    unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3 && access[1] == 'w') CHECK(to - from < most);
    fclose(maps);
    return puts("done") < 0;
}
