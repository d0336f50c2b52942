// A large block of zeroes costs what is used of it, and one that was used wholly serves again without page faults.
// Compiled with -fno-builtin: the compiler leaves out writes to a block that is freed next.
#define _GNU_SOURCE
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { MIB = 1 << 20, BLOCK = 64 * MIB, PAGES = BLOCK / 4096 };

static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

static long resident(char *block) {
    static unsigned char pages[PAGES + 1];
    long count = 0;
    char *start = block - (unsigned long)block % 4096;
    CHECK(mincore(start, BLOCK, pages) == 0);
    for (int i = 0; i < PAGES; i++) count += pages[i] & 1;
    return count;
}

static char *zeroed(void) {
    char *block = calloc(BLOCK / 8, 8);
    CHECK(block);
    return block;
}

static void is_zero(const char *block) {
    static const char zeroes[MIB];
    for (long at = 0; at < BLOCK; at += MIB) CHECK(memcmp(block + at, zeroes, MIB) == 0);
}

int main(int count, char **arguments) {
    (void)arguments;
    int warm = count > 1; // whether freed blocks are kept
    for (int i = 0; i < 20; i++) {
        char *block = zeroed();
        // Four pages of each stretch of 2 MiB, of which two were read to decide.
        CHECK(resident(block) <= PAGES / 512 * 4);
        for (int at = 5; at < BLOCK; at += MIB) {
            CHECK(block[at] == 0);
            block[at] = 1;
        }
        free(block);
    }
    char *block = zeroed();
    is_zero(block);
    for (int i = 0; i < 3; i++) {
        memset(block, i + 1, BLOCK);
        free(block);
        long before = faults();
        block = zeroed();
        memset(block, 1, BLOCK);
        CHECK(!warm || faults() - before < PAGES / 8);
        free(block);
        block = zeroed();
        is_zero(block);
    }
    // The first half was used.
    memset(block, 1, BLOCK / 2);
    free(block);
    block = zeroed();
    CHECK(!warm || (resident(block) >= PAGES / 4 && resident(block) < PAGES / 4 * 3));
    is_zero(block);
    memset(block, 1, BLOCK);
    free(block);
    // In a sandbox.
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    for (int i = 0; i < 3; i++) {
        block = zeroed();
        is_zero(block);
        memset(block, 3, BLOCK);
        free(block);
    }
    return puts("done") < 0;
}
