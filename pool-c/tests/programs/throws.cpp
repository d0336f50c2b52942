// An exception of C++ that the hook of a refusal throws, through the library.
#include "bucketpool.h"
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

[[noreturn]] static void refuse(void *, const char *text) { throw std::runtime_error(text); }

int main() {
    const bp_pool *pool = nullptr;
    if (bp_pool_new("policy = 'pow2'\nreserved_limit = '1M'", "host", 0, &pool) != BP_OK) return 2;
    if (bp_on_oom(pool, refuse, nullptr) != BP_OK) return 3;
    int caught = 0;
    for (int turn = 0; turn < 1000; turn++) {
        void *at = nullptr;
        try {
            bp_alloc(pool, 4 << 20, 0, nullptr, &at);
        } catch (const std::runtime_error &error) {
            caught += std::strstr(error.what(), "limit") != nullptr;
        }
        if (bp_alloc(pool, 1000, 0, nullptr, &at) != BP_OK || bp_free_here(pool, at) != BP_OK) return 4;
    }
    if (bp_pool_drop(pool) != BP_OK) return 5;
    std::puts("throws: passed");
    return caught == 1000 ? 0 : 6;
}
