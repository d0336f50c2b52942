// A small program has few mappings of the library: a fork copies each, and the page tables that it needs.
#include "check.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 100, MOST = 5 };

int main(void) {
    for (int i = 0; i < BLOCKS; i++) CHECK(malloc(10 + i * 5));
    char *block = malloc(100);
    CHECK(block);
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    // The mappings that follow each other up to the one behind that of the block.
    char line[512];
    unsigned long start, end, before = 0;
    int count = 0, is_behind = 0;
    while (!is_behind && fgets(line, sizeof line, maps)) {
        CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
        count = start == before ? count + 1 : 1;
        before = end;
        is_behind = start > (unsigned long)block;
    }
    CHECK(is_behind && fclose(maps) == 0);
    if (count > MOST) fprintf(stderr, "%d mappings\n", count);
    CHECK(count <= MOST);
    puts("done");
    return 0;
}
