// Takes and frees large blocks. At exit it closes stderr, as GNU's tools do, and opens the file of
// its first argument under that number.
#include "check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *path;

static void close_stderr(void) {
    close(2);
    if (open(path, O_CREAT | O_WRONLY, 0600) != 2) {
        _exit(3);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    path = arguments[1];
    CHECK(atexit(close_stderr) == 0);
    for (int i = 0; i < 64; i++) {
        char *block = malloc(4 << 20);
        CHECK(block);
        memset(block, 1, 4 << 20);
        free(block);
    }
    return puts("done") < 0;
}
