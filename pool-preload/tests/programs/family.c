// Calls each function of the malloc family, with sizes below and above 64 KiB.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const size_t SIZES[] = {0, 1, 24, 1000, 65535, 65536, 65537, 300000, 1 << 20, 5000001, 64 << 20};
enum { COUNT = sizeof SIZES / sizeof *SIZES };

static void fill(char *block, size_t bytes, char with) {
    if (bytes) memset(block, with, bytes);
}

static int holds(const char *block, size_t bytes, char what) {
    for (size_t at = 0; at < bytes; at += 509)
        if (block[at] != what) return 0;
    return !bytes || block[bytes - 1] == what;
}

static void blocks_hold_what_was_written(void) {
    char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(SIZES[i]);
        CHECK(blocks[i] && (uintptr_t)blocks[i] % 16 == 0);
        CHECK(malloc_usable_size(blocks[i]) >= SIZES[i]);
        fill(blocks[i], malloc_usable_size(blocks[i]), (char)(i + 1));
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(holds(blocks[i], SIZES[i], (char)(i + 1)));
        errno = 77;
        free(blocks[i]);
        CHECK(errno == 77);
    }
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
}

static void calloc_returns_zeroes(void) {
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < COUNT; i++) {
            char *block = calloc(SIZES[i] / 8 + 1, 8);
            CHECK(block && holds(block, SIZES[i], 0));
            fill(block, SIZES[i], 9);
            free(block);
        }
}

static void realloc_keeps_the_contents(void) {
    for (int from = 0; from < COUNT; from++)
        for (int to = 1; to < COUNT; to++) {
            char *block = from % 2 ? malloc(SIZES[from]) : memalign(64, SIZES[from]);
            fill(block, SIZES[from], 5);
            block = realloc(block, SIZES[to]);
            CHECK(block);
            CHECK(holds(block, SIZES[from] < SIZES[to] ? SIZES[from] : SIZES[to], 5));
            free(block);
        }
    char *block = realloc(NULL, 100000);
    CHECK(block && malloc_usable_size(block) >= 100000);
    CHECK(realloc(block, 0) == NULL); // frees it
    // A block that grows by little keeps its contents at every step.
    block = malloc(1);
    block[0] = 3;
    for (size_t bytes = 1, last = 0; bytes < 40 << 20; bytes += bytes / 7 + 1) {
        block = realloc(block, bytes);
        CHECK(block && block[0] == 3 && block[last] == 3);
        last = bytes - 1;
        block[last] = 3;
    }
    free(block);
}

static void requests_that_are_too_large_fail(void) {
    volatile size_t much = SIZE_MAX / 2;
    errno = 0;
    CHECK(malloc(much) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(much, 4) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pvalloc(SIZE_MAX - 1) == NULL && errno == ENOMEM);
    errno = 0;
    char *block = malloc(100000);
    fill(block, 100000, 8);
    CHECK(realloc(block, much) == NULL && errno == ENOMEM);
    CHECK(holds(block, 100000, 8));
    free(block);
    void *result = &result;
    errno = 55;
    CHECK(posix_memalign(&result, 64, much) == ENOMEM && result == &result && errno == 55);
}

static void blocks_are_aligned(void) {
    for (size_t align = 1; align <= 8 << 20; align *= 2)
        for (int i = 0; i < COUNT; i++) {
            char *block = memalign(align, SIZES[i]);
            CHECK(block && (uintptr_t)block % align == 0 && malloc_usable_size(block) >= SIZES[i]);
            fill(block, SIZES[i], 1);
            free(block);
            void *result = NULL;
            int expected = align < sizeof(void *) ? EINVAL : 0;
            CHECK(posix_memalign(&result, align, SIZES[i]) == expected);
            CHECK(expected || (uintptr_t)result % align == 0);
            free(result);
            block = aligned_alloc(align, SIZES[i]);
            CHECK(block && (uintptr_t)block % align == 0);
            free(block);
        }
    char *odd = memalign(48, 100000);
    CHECK(odd && (uintptr_t)odd % 64 == 0); // rounded up to a power of two
    free(odd);
    void *result;
    CHECK(posix_memalign(&result, 0, 8) == EINVAL && posix_memalign(&result, 24, 8) == EINVAL);
    char *pages = valloc(100), *whole = pvalloc(70000);
    CHECK((uintptr_t)pages % 4096 == 0 && (uintptr_t)whole % 4096 == 0);
    CHECK(malloc_usable_size(whole) >= 73728);
    free(pages);
    free(whole);
}

static void sized_frees_free(void) {
    void (*sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
    void (*aligned)(void *, size_t, size_t) = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    CHECK(sized && aligned);
    for (int i = 0; i < COUNT; i++) {
        sized(malloc(SIZES[i]), SIZES[i]);
        aligned(memalign(128, SIZES[i]), 128, SIZES[i]);
    }
}

int main(void) {
    blocks_hold_what_was_written();
    calloc_returns_zeroes();
    realloc_keeps_the_contents();
    requests_that_are_too_large_fail();
    blocks_are_aligned();
    sized_frees_free();
    free(malloc(10 << 20));
    CHECK(malloc_trim(0) == 1);
    return puts("done") < 0;
}
