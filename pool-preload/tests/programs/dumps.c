// A core dump has the blocks of the program, and none of the addresses that the heap only reserves.
// `dd` in /proc/self/smaps marks what a core dump leaves out (proc_pid_smaps(5)).
#include "check.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 20 << 20 };

int main(void) {
    char *block = malloc(BYTES);
    CHECK(block);
    memset(block, 1, BYTES);
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    char line[512], access[5] = "";
    uintptr_t start = 0, end = 0, dumped = 0, left_out = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %4s", &from, &to, access) == 3) {
            start = from;
            end = to;
        } else if (!strncmp(line, "VmFlags:", 8)) {
            int is_left_out = strstr(line, " dd") != NULL;
            int has_block = start < (uintptr_t)block + BYTES && (uintptr_t)block < end;
            CHECK(!(has_block && is_left_out));
            *(is_left_out ? &left_out : &dumped) += end - start;
        }
    }
    fclose(maps);
    // What is usable of the heap, its map, the program and its libraries.
    CHECK(dumped < (256ul << 20));
    CHECK(left_out > (1ul << 30));
    free(block);
    return puts("done") < 0;
}
