// Ends the program with a line that names the failed condition.
#include <stdio.h>
#include <unistd.h>
#define CHECK(condition)                                                        \
    do                                                                          \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            _exit(1);                                                           \
        }                                                                       \
    while (0)
