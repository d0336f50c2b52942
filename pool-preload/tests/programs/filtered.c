// A program whose seccomp filter ends it at calls that it does not know, and which installs it past the C
// library. The library's thread starts under the filter.
#define _GNU_SOURCE
#include "tasks.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define UNKNOWN(call)                                                           \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),                      \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        UNKNOWN(capget), UNKNOWN(capset), UNKNOWN(sched_setscheduler), UNKNOWN(sched_getscheduler),
        UNKNOWN(sched_setaffinity), UNKNOWN(sched_getaffinity), UNKNOWN(setpriority), UNKNOWN(getpriority),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    CHECK(wait_for_thread() != getpid());
    return puts("done") < 0;
}
