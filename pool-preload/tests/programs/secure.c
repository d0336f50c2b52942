// Linked with the library, and run with a real user ID other than its effective one, so that the
// kernel tells it to trust no environment. The library must take no settings from there, and must
// leave none for the programs that this one starts.
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

int main(void) {
    CHECK(getauxval(AT_SECURE) != 0);
    CHECK(getenv("BUCKETPOOL_HOST") == NULL && getenv("HOME") != NULL);
    char *block = malloc(1 << 20);
    CHECK(block);
    memset(block, 1, 1 << 20);
    free(block);
    return puts("done") < 0;
}
