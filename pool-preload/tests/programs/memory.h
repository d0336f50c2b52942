// What the system says of the memory of this process.
#include "check.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// KiB in a line of a file of /proc/self.
static long kib(const char *file, const char *line) {
    char path[64], text[256];
    long found = -1;
    snprintf(path, sizeof path, "/proc/self/%s", file);
    FILE *lines = fopen(path, "r");
    CHECK(lines);
    while (found < 0 && fgets(text, sizeof text, lines))
        if (strncmp(text, line, strlen(line)) == 0) CHECK(sscanf(text + strlen(line), ": %ld", &found) == 1);
    fclose(lines);
    CHECK(found >= 0);
    return found;
}

static inline long resident_kib(void) {
    return kib("smaps_rollup", "Rss");
}

// Waits until fewer KiB are resident, without an allocation.
static inline void wait_until_below(long limit) {
    struct timespec start, now, moment = {0, 10000000};
    CHECK(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
    while (resident_kib() >= limit) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - start.tv_sec < 60);
        nanosleep(&moment, NULL);
    }
}
