// Takes and frees a large block, closes all descriptors, as a daemon does, and opens the file of
// its first argument under each of their numbers.
#include "check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    char *block = malloc(4 << 20);
    CHECK(block);
    memset(block, 1, 4 << 20);
    free(block);
    CHECK(puts("done") >= 0 && fflush(stdout) == 0);
    for (int descriptor = 0; descriptor < 1024; descriptor++) {
        close(descriptor);
    }
    for (int descriptor = 0; descriptor < 1000; descriptor++) {
        if (open(arguments[1], O_CREAT | O_WRONLY | O_APPEND, 0600) != descriptor) {
            return 4;
        }
    }
    return 0;
}
