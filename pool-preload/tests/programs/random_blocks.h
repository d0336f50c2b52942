// Blocks at random, whose contents are checked: each has a pattern that follows from its address and size.
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 192, LIVE = 32 << 20 };

struct block {
    unsigned char *at;
    size_t bytes;
};

struct table {
    struct block blocks[SLOTS];
    size_t live;
    uint64_t random;
};

// Requests that were refused while a limit was in force, and without one.
static atomic_uint refused_under_limit, refused;
static atomic_int limits;

static inline uint32_t next(uint64_t *random) {
    uint64_t mixed = *random += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return (uint32_t)(mixed >> 32);
}

static inline uint32_t below(uint64_t *random, uint32_t end) {
    return next(random) % end;
}

// How far from each other the bytes are that are written and checked; the last one is, too.
static inline size_t stride(size_t bytes) {
    return bytes <= 4096 ? 61 : bytes <= 65536 ? 1021 : bytes <= 1 << 20 ? 16381 : 65521;
}

static inline unsigned char pattern(const void *at, size_t bytes, size_t place) {
    return (unsigned char)(((uintptr_t)at >> 4) * 37 + bytes * 11 + place * 7 + 1);
}

static void fill(struct block block) {
    for (size_t place = 0; place < block.bytes; place += stride(block.bytes))
        block.at[place] = pattern(block.at, block.bytes, place);
    if (block.bytes) block.at[block.bytes - 1] = pattern(block.at, block.bytes, block.bytes - 1);
}

// Checks the first `bytes` of what `fill` wrote to `old`, which may lie elsewhere now.
static void check_moved(struct block old, const unsigned char *now, size_t bytes) {
    for (size_t place = 0; place < bytes; place += stride(old.bytes))
        CHECK(place == old.bytes - 1 || now[place] == pattern(old.at, old.bytes, place));
    if (bytes == old.bytes && bytes) CHECK(now[bytes - 1] == pattern(old.at, bytes, bytes - 1));
}

static void check(struct block block) {
    if (block.at) check_moved(block, block.at, block.bytes);
}

static void check_zero(struct block block) {
    size_t step = block.bytes <= 1024 ? 1 : stride(block.bytes);
    for (size_t place = 0; place < block.bytes; place += step) CHECK(block.at[place] == 0);
    if (block.bytes) CHECK(block.at[block.bytes - 1] == 0);
}

static void release(struct table *table, struct block *block) {
    check(*block);
    errno = 77;
    free(block->at);
    CHECK(errno == 77);
    table->live -= block->bytes;
    *block = (struct block){0};
}

static size_t random_bytes(uint64_t *random) {
    uint32_t kind = below(random, 100);
    return 1 + (kind < 60   ? below(random, 1024)
                : kind < 85 ? below(random, 65536)
                : kind < 98 ? below(random, 1 << 20)
                            : below(random, 6 << 20));
}

// Counts a refusal: returns whether the request was served.
static int is_served(const void *block) {
    if (!block) atomic_fetch_add(limits ? &refused_under_limit : &refused, 1);
    return block != NULL;
}

static void *request(struct table *table, size_t bytes, int *is_zero) {
    uint64_t *random = &table->random;
    void *block = NULL;
    *is_zero = 0;
    switch (below(random, 8)) {
    case 0: *is_zero = 1; return calloc(1 + bytes / 8, 8);
    case 1: return aligned_alloc(4096, (bytes + 4095) & ~4095ul);
    case 2: return posix_memalign(&block, 16ul << below(random, 9), bytes) ? NULL : block;
    default: return malloc(bytes);
    }
}

static void allocate(struct table *table, struct block *slot) {
    size_t bytes = random_bytes(&table->random);
    int is_zero;
    struct block block = {request(table, bytes, &is_zero), bytes};
    if (!is_served(block.at)) return;
    CHECK((uintptr_t)block.at % 16 == 0 && malloc_usable_size(block.at) >= bytes);
    if (is_zero) check_zero(block);
    fill(block);
    table->live += bytes;
    *slot = block;
}

// Resizes a block, with what it holds. One that is refused stays as it is.
static __attribute__((noinline)) int resize(struct block *block, size_t bytes) {
    unsigned char *moved = realloc(block->at, bytes);
    if (!is_served(moved)) {
        check(*block);
        return 0;
    }
    check_moved(*block, moved, bytes < block->bytes ? bytes : block->bytes);
    *block = (struct block){moved, bytes};
    fill(*block);
    return 1;
}

static void resize_slot(struct table *table, struct block *slot) {
    size_t before = slot->bytes, bytes = before * (1 + below(&table->random, 16)) / 4 + 1;
    if (bytes > 12 << 20) bytes = 1 + below(&table->random, 4096);
    if (resize(slot, bytes)) table->live += bytes - before;
}

// Makes random requests and frees.
static void work(struct table *table, int steps) {
    while (steps-- > 0) {
        struct block *slot = &table->blocks[below(&table->random, SLOTS)];
        uint32_t what = below(&table->random, 8);
        if (!slot->at)
            allocate(table, slot);
        else if (table->live > LIVE || what < 4)
            release(table, slot);
        else if (what < 6)
            resize_slot(table, slot);
        else
            check(*slot);
    }
}

static void release_all(struct table *table) {
    for (int i = 0; i < SLOTS; i++) release(table, &table->blocks[i]);
}
