// A program with a filter that permits the calls of the C library's malloc, and prlimit64, sets limits: first, or (with an argument)
// a forked worker does so in whose child of vfork a limit was set before.
#define _GNU_SOURCE
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PERMIT(call)                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),                      \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void limit_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        PERMIT(write), PERMIT(exit_group), PERMIT(brk), PERMIT(mmap), PERMIT(munmap), PERMIT(mremap), PERMIT(mprotect),
        PERMIT(madvise), PERMIT(futex), PERMIT(prlimit64), PERMIT(getrandom), PERMIT(fstat), PERMIT(newfstatat),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void set_limits(void) {
    struct rlimit limit = {8ul << 30, 8ul << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && setrlimit(RLIMIT_DATA, &limit) == 0);
}

static void allocate(void) {
    for (int i = 0; i < 60; i++) {
        char *block = malloc(1 << 20);
        CHECK(block);
        memset(block, 1, 1 << 20);
    }
}

static void work(void) {
    pid_t child = vfork();
    if (child == 0) {
        set_limits();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    limit_calls();
    allocate();
    _exit(0);
}

int main(int count, char **arguments) {
    (void)arguments;
    free(malloc(1000));
    if (count > 1) {
        pid_t worker = fork();
        if (worker == 0) work();
        int status;
        CHECK(waitpid(worker, &status, 0) == worker && status == 0);
    } else {
        limit_calls();
        set_limits();
        allocate();
    }
    return puts("done") < 0;
}
