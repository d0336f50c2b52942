// A filter that looks at arguments permits what the C library's functions ask for when they allocate, as Tor's does: private memory
// without a file, to read and write at any place, and without access at one of the system's choice; and to resize a mapping.
#define _GNU_SOURCE
#include "check.h"
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
// Goes on with the next line if the loaded word is this, and else `otherwise` lines further.
#define IS(word, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (word), 0, (otherwise))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define PERMIT(call) IS(SYS_##call, 1), ALLOW
enum { OWN = MAP_PRIVATE | MAP_ANONYMOUS };

static void limit_calls(void) {
    struct sock_filter filter[] = {
        LOAD(nr), PERMIT(brk), PERMIT(munmap), PERMIT(exit_group), PERMIT(write), PERMIT(getrandom),
        IS(SYS_mremap, 4), LOAD(args[3]), IS(MREMAP_MAYMOVE, 1), ALLOW, KILL,
        IS(SYS_futex, 6), LOAD(args[1]), IS(FUTEX_WAIT_PRIVATE, 1), ALLOW, IS(FUTEX_WAKE_PRIVATE, 1), ALLOW, KILL,
        IS(SYS_mmap, 16), LOAD(args[4]), IS(0xffffffff, 14), LOAD(args[2]),
        IS(PROT_READ | PROT_WRITE, 6), LOAD(args[3]), IS(OWN, 1), ALLOW, IS(OWN | MAP_FIXED, 1), ALLOW, KILL,
        IS(PROT_NONE, 4), LOAD(args[3]), IS(OWN | MAP_NORESERVE, 1), ALLOW, KILL,
        KILL,
        KILL,
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void work(void) {
    char *arrays[2] = {NULL, NULL};
    size_t before = 0;
    for (size_t bytes = 1000; bytes < 40 << 20; before = bytes, bytes += bytes / 3)
        for (int i = 0; i < 2; i++) {
            char *grown = realloc(arrays[i], bytes);
            if (!grown || (before && (grown[0] != i + 1 || grown[before - 1] != i + 1))) _exit(2);
            memset(arrays[i] = grown, i + 1, bytes);
        }
    for (int i = 0; i < 2; i++) free(arrays[i]);
    char *blocks[64];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 64; i++) {
            size_t bytes = (size_t)1 << (i + round) % 22;
            if (!(blocks[i] = i & 1 ? malloc(bytes) : calloc(1, bytes))) _exit(3);
            memset(blocks[i], 1, bytes);
        }
        for (int i = 0; i < 64; i++) free(blocks[i]);
    }
}

int main(void) {
    for (int rounds = 0; rounds < 2; rounds++) {
        pid_t child = fork();
        if (child == 0) {
            for (int round = 0; round < rounds; round++) work();
            limit_calls();
            work();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return puts("done") < 0;
}
