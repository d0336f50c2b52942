// The system refuses threads. The library says nothing, least of all into a file of the program.
#define _GNU_SOURCE
#include "memory.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(close(2) == 0);
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file == 2);
    CHECK(setgid(65533) == 0 && setuid(65533) == 0);
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    static char *blocks[50];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 50; i++) {
            blocks[i] = malloc(2 << 20);
            CHECK(blocks[i]);
            memset(blocks[i], 1, 2 << 20);
        }
        for (int i = 0; i < 50; i++) free(blocks[i]);
    }
    struct stat status;
    CHECK(fstat(file, &status) == 0 && status.st_size == 0);
    return puts("done") < 0;
}
