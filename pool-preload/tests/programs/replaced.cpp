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

int main() {
    for (std::size_t bytes : {100, 100000}) {
        operator delete(operator new(bytes), bytes);
        operator delete[](operator new[](bytes));
        operator delete[](operator new[](bytes), bytes);
        operator delete(operator new(bytes, std::nothrow), std::nothrow);
        operator delete[](operator new[](bytes, std::nothrow), std::nothrow);
        CHECK(live == 0);
    }
    return puts("done") < 0;
}
