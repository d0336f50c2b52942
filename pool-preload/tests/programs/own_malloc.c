// A program with a malloc linked in.
#include <stddef.h>

static char memory[1 << 20];
static size_t used;

void *malloc(size_t bytes) {
    void *block = memory + used;
    used += (bytes + 15) & ~(size_t)15;
    return block;
}

void free(void *block) { (void)block; }

int main(void) { return malloc(8) == NULL; }
