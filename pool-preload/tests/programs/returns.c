// Frees 256 MiB, and waits until the resident memory has fallen, without a large block meanwhile.
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long resident_kib(void) {
    long pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(void) {
    long before = resident_kib();
    char *blocks[64];
    for (int i = 0; i < 64; i++) {
        blocks[i] = malloc(4 << 20);
        CHECK(blocks[i]);
        memset(blocks[i], 1, 4 << 20);
    }
    CHECK(resident_kib() > before + (250 << 10));
    for (int i = 0; i < 64; i++) free(blocks[i]);
    time_t start = time(NULL);
    while (resident_kib() > before + (8 << 10)) CHECK(time(NULL) - start < 60);
    return puts("done") < 0;
}
