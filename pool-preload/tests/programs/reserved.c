// Prints how many MiB of addresses lie around a large block without a gap, and what is mapped in sum.
#include "memory.h"
#include <stdlib.h>

int main(void) {
    char *block = malloc(1 << 20);
    CHECK(block);
    FILE *lines = fopen("/proc/self/maps", "r");
    CHECK(lines);
    char text[512];
    unsigned long from, to, start = 0, end = 0;
    while (fgets(text, sizeof text, lines)) {
        if (sscanf(text, "%lx-%lx ", &from, &to) != 2) continue;
        if (end <= (size_t)block && from != end) start = from;
        if (end <= (size_t)block || from == end) end = to;
    }
    fclose(lines);
    CHECK(start <= (size_t)block && (size_t)block < end);
    return printf("%lu\n", (end - start) >> 20) < 0;
}
