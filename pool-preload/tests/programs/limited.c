// Under RLIMIT_DATA, what large blocks had serves small ones, and again large ones.
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char *blocks[2000];

static int allocate(int most, size_t bytes) {
    int count = 0;
    while (count < most && (blocks[count] = malloc(bytes))) memset(blocks[count++], 1, bytes);
    return count;
}

static void release(int count) {
    for (int i = 0; i < count; i++) free(blocks[i]);
}

int main(void) {
    struct rlimit limit = {100 << 20, 100 << 20};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (int round = 0; round < 3; round++) {
        // Not until a refusal: with two threads, that moves a thread of the C library to another arena,
        // whose memory counts for good.
        CHECK(allocate(20, 4 << 20) == 20);
        release(20);
        CHECK(allocate(1600, 50000) == 1600);
        release(1600);
        CHECK(allocate(1, 70 << 20) == 1);
        release(1);
    }
    int count = allocate(2000, 4 << 20);
    CHECK(count >= 20 && count <= 25);
    release(count);
    CHECK(allocate(1600, 50000) == 1600);
    return puts("done") < 0;
}
