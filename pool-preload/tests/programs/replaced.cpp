// Replaces the plain `operator new` and `operator delete`, and uses the forms that rely on them.
#include "check.h"
#include <cstdlib>
#include <initializer_list>
#include <new>

static long live = 0;

// A header in front of each block: what `free` would crash on.
void *operator new(std::size_t bytes) {
    live++;
    char *block = static_cast<char *>(std::malloc(bytes + 32));
    if (!block) throw std::bad_alloc();
    return block + 32;
}

void operator delete(void *block) noexcept {
    if (!block) return;
    live--;
    std::free(static_cast<char *>(block) - 32);
}

// These two have no other form here that calls them.
void *operator new[](std::size_t bytes, std::align_val_t align) {
    live++;
    char *block = static_cast<char *>(std::aligned_alloc(static_cast<std::size_t>(align), bytes + 256));
    if (!block) throw std::bad_alloc();
    return block + 256;
}

void operator delete[](void *block, std::align_val_t) noexcept {
    if (!block) return;
    live--;
    std::free(static_cast<char *>(block) - 256);
}

extern "C" double linked();

int main() {
    CHECK(linked() == 1.0);
    const long before = live;
    const std::align_val_t align{64};
    for (std::size_t bytes : {128, 128000}) {
        operator delete(operator new(bytes), bytes);
        operator delete[](operator new[](bytes));
        operator delete[](operator new[](bytes), bytes);
        operator delete(operator new(bytes, std::nothrow), std::nothrow);
        operator delete[](operator new[](bytes, std::nothrow), std::nothrow);
        operator delete[](operator new[](bytes, align), bytes, align);
        operator delete[](operator new[](bytes, align, std::nothrow), align, std::nothrow);
        CHECK(live == before);
    }
    return puts("done") < 0;
}
