// Two arrays that grow in turns to 900 MiB and are hardly touched stay small; 300 that grow by small steps
// copy little.
#include "memory.h"
#include <stdlib.h>

int main(void) {
    char *one = NULL, *other = NULL;
    for (size_t bytes = 1 << 20; bytes < 900U << 20; bytes += bytes / 8) {
        one = realloc(one, bytes), other = realloc(other, bytes);
        CHECK(one && other);
        memset(one + bytes - 4096, 1, 4096), memset(other + bytes - 4096, 2, 4096);
    }
    CHECK(one[(1 << 20) - 1] == 1 && other[(1 << 20) - 1] == 2);
    CHECK(resident_kib() < 64 << 10);
    free(one), free(other);

    static char *arrays[100];
    long moves = 0, calls = 0;
    for (size_t bytes = 65536; bytes <= 4 << 20; bytes += 65536)
        for (int i = 0; i < 100; i++) {
            char *grown = realloc(arrays[i], bytes);
            CHECK(grown);
            moves += grown != arrays[i], calls++;
            memset(grown + bytes - 65536, i, 65536);
            arrays[i] = grown;
        }
    CHECK(moves < calls / 2);
    for (int i = 0; i < 100; i++)
        for (size_t at = 0; at < 4 << 20; at += 1000) CHECK(arrays[i][at] == (char)i);
    return puts("done") < 0;
}
