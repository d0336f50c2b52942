// Filters of system calls, installed as programs do that limit themselves.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define PERMIT BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define IF(value, lines) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, lines)
// The lower half of an argument.
#define ARGUMENT(number) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[number]))
#define CALL(name) IF(SYS_##name, 1), PERMIT
// Permits a call if an argument has one of two values; the number is loaded again behind it.
#define CALL_IF(name, number, one, other) \
    IF(SYS_##name, 6), ARGUMENT(number), IF(one, 1), PERMIT, IF(other, 1), PERMIT, NUMBER

#define OWN_MEMORY (MAP_PRIVATE | MAP_ANONYMOUS)
#define COUNT(filter) (sizeof(filter) / sizeof *(filter))

static int install(struct sock_filter *filter, size_t count) {
    struct sock_fprog program = {(unsigned short)count, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// A filter that permits all but a call that no program makes.
static int permit_all(void) {
    struct sock_filter filter[] = {
        NUMBER, IF(SYS_uselib, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), PERMIT,
    };
    return install(filter, COUNT(filter));
}

// Tor's rule for mremap: that of the C library's realloc. It permits all other calls.
static int permit_plain_mremap(void) {
    struct sock_filter filter[] = {
        NUMBER, CALL_IF(mremap, 3, MREMAP_MAYMOVE, MREMAP_MAYMOVE),
        IF(SYS_mremap, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), PERMIT,
    };
    return install(filter, COUNT(filter));
}

// The calls of the C library's malloc, with any arguments; others end the process, or fail.
static int permit_calls(unsigned action) {
    struct sock_filter filter[] = {
        NUMBER, CALL(brk), CALL(mmap), CALL(munmap), CALL(mremap), CALL(mprotect), CALL(madvise), CALL(futex),
        CALL(sched_getaffinity), CALL(getrandom), CALL(clock_gettime), CALL(rt_sigreturn), CALL(write),
        CALL(exit), CALL(exit_group), BPF_STMT(BPF_RET | BPF_K, action),
    };
    return install(filter, COUNT(filter));
}

// The same with the flags that it passes, and with `MAP_FIXED`, by which the library gives memory back.
static int permit_arguments(unsigned action) {
    struct sock_filter filter[] = {
        NUMBER, CALL(brk), CALL(munmap), CALL(futex), CALL(sched_getaffinity), CALL(getrandom), CALL(clock_gettime),
        CALL(rt_sigreturn), CALL(write), CALL(exit), CALL(exit_group),
        IF(SYS_mmap, 8), ARGUMENT(3), IF(OWN_MEMORY, 1), PERMIT, IF(OWN_MEMORY | MAP_NORESERVE, 1), PERMIT,
        IF(OWN_MEMORY | MAP_FIXED, 1), PERMIT, NUMBER,
        CALL_IF(mremap, 3, MREMAP_MAYMOVE, MREMAP_MAYMOVE),
        CALL_IF(mprotect, 2, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE),
        CALL_IF(madvise, 2, MADV_DONTNEED, MADV_DONTNEED), BPF_STMT(BPF_RET | BPF_K, action),
    };
    return install(filter, COUNT(filter));
}
