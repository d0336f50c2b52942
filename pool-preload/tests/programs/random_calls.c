// A program of random system calls beside a heap whose blocks are checked, which a number chooses:
// random_calls SEED KINDS LIBRARY. KINDS has a bit for each kind of call that it may make (`enum kind`).
//
// It ends with 0 if all requests were served, with 20 and the binary logarithm of their number if some were
// refused under a limit that it had set itself, and with 60 and that if some were without a limit.
#define _GNU_SOURCE
#include "random_system.h"

static struct table own;

static int logarithm(unsigned count) {
    int bits = 0;
    for (; count; count /= 2) bits++;
    return bits;
}

static int status(void) {
    return refused ? 60 + logarithm(refused) : refused_under_limit ? 20 + logarithm(refused_under_limit) : 0;
}

// What only blocks that are there already need: read, write and _exit are all that the system permits.
static void be_strict(void) {
    void *blocks[4];
    stop_all();
    for (int i = 0; i < 4; i++) blocks[i] = malloc(100);
    for (int i = 0; i < 4; i++) free(blocks[i]);
    int code = status();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) _exit(code);
    for (int round = 0; round < 30000; round++) {
        for (int i = 0; i < 4; i++) blocks[i] = malloc(100);
        for (int i = 0; i < 4; i++) free(blocks[i]);
    }
    syscall(SYS_exit, code);
}

static void filter(enum kind kind) {
    if (kind == ALL_PERMITTED) {
        CHECK(permit_all() == 0);
        return;
    }
    stop_all();
    unsigned action = below(&own.random, 2) ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    int failed = kind == PLAIN_MREMAP  ? permit_plain_mremap()
                 : kind == MALLOC_CALLS ? permit_calls(action)
                                        : permit_arguments(action);
    CHECK(failed == 0);
    work(&own, 1000);
    if (kind != PLAIN_MREMAP) _exit(status());
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    uint64_t seed = strtoull(arguments[1], NULL, 10);
    unsigned permitted = (unsigned)strtoul(arguments[2], NULL, 0), kinds = 0;
    own.random = seed;
    start_system(arguments[3], &own);
    // Each program makes a few kinds of calls.
    for (int i = 0; i < 6; i++) kinds |= 1u << below(&own.random, KINDS);
    kinds &= permitted;
    // The mappings of a process take long to fill: one program in 32 does it.
    kinds &= ~(1u << MAPPINGS);
    if (seed % 32 == 0) kinds |= 1u << MAPPINGS & permitted;
    // Pages that may be executed are mappings of their own beside those before: each malloc needs one more.
    if (kinds & 1u << MAPPINGS) kinds &= ~(1u << PERSONALITY);
    // What forks in a handler has one thread, as POSIX wants.
    if (kinds & 1u << FORK_IN_HANDLER) kinds &= ~(1u << THREADS | 1u << ALL_PERMITTED);
    for (int step = 0; step < 30; step++) {
        work(&own, 50);
        enum kind kind = below(&own.random, KINDS);
        if (step == 9 && seed % 32 == 0) kind = MAPPINGS;
        if (!(kinds & 1u << kind)) continue;
        if (kind < FILTERS)
            call(kind);
        else if (step > 15)
            kind == STRICT ? be_strict() : filter(kind);
    }
    stop_all();
    release_all(&own);
    return status();
}
