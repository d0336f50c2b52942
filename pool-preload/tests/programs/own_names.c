// A program that has a symbol of an allocator whose names have a prefix, as Rust programs have.
#include <stdio.h>

void *_rjem_malloc(size_t bytes) { return bytes ? stdout : NULL; }

int main(void) { return _rjem_malloc(1) == NULL || puts("done") < 0; }
