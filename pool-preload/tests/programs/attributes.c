// What a program does to the pages of a block does not reach a later block at the same place. With an
// argument, malloc_trim comes in between.
#define _GNU_SOURCE
#include "memory.h"
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

static int trims;

static char *block(size_t bytes) {
    char *block = memalign(4096, bytes);
    CHECK(block && (size_t)block % 4096 == 0);
    memset(block, 1, bytes);
    return block;
}

// Frees a block, and returns the next one of its size.
static char *after(char *old, size_t bytes) {
    free(old);
    if (trims) malloc_trim(0);
    return block(bytes); // writes to all of it
}

// Whether a child reads what the parent wrote.
static void child_reads(const char *block, size_t bytes) {
    pid_t child = fork();
    if (child == 0) {
        size_t wrong = 0;
        for (size_t at = 0; at < bytes; at++) wrong += block[at] != 1;
        _exit(wrong > 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Whether the mapping of an address has a flag.
static int has_flag(const char *address, const char *flag) {
    char text[512];
    unsigned long start, end;
    int is_here = 0, has = 0;
    FILE *lines = fopen("/proc/self/smaps", "r");
    CHECK(lines);
    while (fgets(text, sizeof text, lines)) {
        if (sscanf(text, "%lx-%lx ", &start, &end) == 2) is_here = start <= (size_t)address && (size_t)address < end;
        if (is_here && strncmp(text, "VmFlags:", 8) == 0) has = strstr(text, flag) != NULL;
    }
    fclose(lines);
    return has;
}

int main(int count, char **arguments) {
    (void)arguments;
    trims = count > 1;
    size_t bytes = 1 << 20;
    char *old = block(bytes);
    CHECK(mprotect(old, 4096, PROT_NONE) == 0 && mprotect(old + bytes - 4096, 4096, PROT_NONE) == 0);
    free(after(old, bytes));

    bytes = 3 << 20, old = block(bytes);
    CHECK(madvise(old, bytes, MADV_DONTFORK) == 0);
    char *next = after(old, bytes);
    child_reads(next, bytes);
    free(next);

    bytes = 4 << 20, old = block(bytes);
    CHECK(madvise(old, bytes, MADV_WIPEONFORK) == 0);
    next = after(old, bytes);
    child_reads(next, bytes);
    free(next);

    bytes = 5 << 20, old = block(bytes);
    if (mlock(old, bytes) == 0) {
        CHECK(kib("status", "VmLck") >= 5 << 10);
        free(after(old, bytes));
        CHECK(kib("status", "VmLck") == 0);
    } else
        free(old);

    bytes = 6 << 20, old = block(bytes);
    CHECK(madvise(old, bytes, MADV_DONTDUMP) == 0);
    next = after(old, bytes);
    CHECK(!has_flag(next + 8192, " dd"));
    free(next);

    bytes = 7 << 20, old = block(bytes);
    CHECK(mprotect(old, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    next = after(old, bytes);
    CHECK(!has_flag(next + 8192, " ex"));
    return puts("done") < 0;
}
