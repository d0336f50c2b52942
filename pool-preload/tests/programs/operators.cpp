// Calls each form of `operator new` and `operator delete`, also before and after main.
#include "check.h"
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

static std::vector<double> before_main(1 << 20, 2.0); // also freed after main

static const std::size_t SIZES[] = {1, 1000, 65536, 1 << 20};
static int handled = 0;

static void handler() {
    handled++;
    if (handled % 2 == 0) std::set_new_handler(nullptr);
}

struct alignas(256) Aligned {
    char bytes[100000];
};

static void each_form(std::size_t bytes) {
    const std::align_val_t align{512};
    void *blocks[] = {
        operator new(bytes),
        operator new[](bytes),
        operator new(bytes, std::nothrow),
        operator new[](bytes, std::nothrow),
        operator new(bytes, align),
        operator new[](bytes, align),
        operator new(bytes, align, std::nothrow),
        operator new[](bytes, align, std::nothrow),
        operator new(bytes),
        operator new[](bytes),
        operator new(bytes, align),
        operator new[](bytes, align),
    };
    for (void *block : blocks) {
        CHECK(block);
        std::memset(block, 1, bytes);
    }
    for (int i : {4, 5, 6, 7, 10, 11}) CHECK((std::uintptr_t)blocks[i] % 512 == 0);
    operator delete(blocks[0]);
    operator delete[](blocks[1]);
    operator delete(blocks[2], std::nothrow);
    operator delete[](blocks[3], std::nothrow);
    operator delete(blocks[4], align);
    operator delete[](blocks[5], align);
    operator delete(blocks[6], align, std::nothrow);
    operator delete[](blocks[7], align, std::nothrow);
    operator delete(blocks[8], bytes);
    operator delete[](blocks[9], bytes);
    operator delete(blocks[10], bytes, align);
    operator delete[](blocks[11], bytes, align);
    operator delete(nullptr);
}

template <typename F> static bool throws(F allocate) {
    std::set_new_handler(handler);
    handled = 0;
    try {
        allocate();
        return false;
    } catch (const std::bad_alloc &) {
        return handled == 2; // the handler was asked until it gave up
    }
}

int main() {
    CHECK(before_main[77] == 2.0);
    for (std::size_t bytes : SIZES) each_form(bytes);
    volatile std::size_t much = (std::size_t)1 << 60;
    CHECK(throws([&] { return operator new(much); }));
    CHECK(throws([&] { return operator new[](much); }));
    CHECK(throws([&] { return operator new(much, std::align_val_t{64}); }));
    std::set_new_handler(nullptr);
    CHECK(operator new(much, std::nothrow) == nullptr);
    CHECK(operator new[](much, std::align_val_t{64}, std::nothrow) == nullptr);
    delete new Aligned;
    delete[] new Aligned[3];
    return puts("done") < 0;
}
