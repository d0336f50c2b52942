// Under a limit of data that was there at the start, freed blocks above 64 KiB go back at once.
#include "memory.h"
#include <stdlib.h>
#include <sys/resource.h>

int main(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY);
    long before = resident_kib(), data = kib("status", "VmData");
    for (size_t bytes = 80000; bytes < 100 << 20; bytes *= 3) {
        char *volatile block = malloc(bytes);
        CHECK(block);
        memset(block, 1, bytes);
        free(block);
        CHECK(resident_kib() < before + 4096 && kib("status", "VmData") < data + 8192);
    }
    return puts("done") < 0;
}
