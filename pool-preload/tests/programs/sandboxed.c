// A filter that permits the system calls of the C library's malloc, and of little else, before the first
// large block and after some.
#define _GNU_SOURCE
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PERMIT(call)                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),                      \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void work(int rounds) {
    for (int round = 0; round < rounds; round++) {
        char *blocks[20];
        for (int i = 0; i < 20; i++) {
            size_t bytes = 100000 + 500000 * (size_t)i + 5000 * (size_t)round;
            blocks[i] = malloc(bytes);
            if (!blocks[i]) _exit(2);
            memset(blocks[i], 1, bytes);
            blocks[i] = realloc(blocks[i], 2 * bytes);
            if (!blocks[i] || blocks[i][bytes - 1] != 1) _exit(3);
        }
        for (int i = 0; i < 20; i++) free(blocks[i]);
    }
}

static void sandboxed(int rounds) {
    work(rounds);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        PERMIT(read), PERMIT(write), PERMIT(exit), PERMIT(exit_group), PERMIT(brk), PERMIT(mmap),
        PERMIT(munmap), PERMIT(mremap), PERMIT(futex), PERMIT(rt_sigreturn), PERMIT(clock_gettime), PERMIT(getrandom),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(4);
    work(30);
    _exit(0);
}

int main(void) {
    for (int rounds = 0; rounds < 3; rounds++) {
        pid_t child = fork();
        if (child == 0) sandboxed(rounds);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(prctl(PR_SET_NAME, "a name") == 0 && prctl(PR_GET_DUMPABLE) >= 0 && prctl(-1) == -1);
    return puts("done") < 0;
}
