// Blocks from 64 KiB to 4 MiB: each thread keeps 32 of them, replaces one at a time, and touches
// each page once. One request in 16 is a realloc, one in 16 a calloc.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PLACES = 32, PAGE = 4096 };
static long steps;

static void touch(char *block, size_t bytes) {
    if (!block) abort();
    for (size_t at = 0; at < bytes; at += PAGE) block[at]++;
}

static void *work(void *number) {
    char *places[PLACES] = {0};
    unsigned random = (unsigned)(size_t)number * 2654435761u;
    for (long step = 0; step < steps; step++) {
        random = random * 1103515245u + 12345u;
        size_t bytes = (size_t)(64 << 10) << (random >> 28) % 6;
        bytes += (random >> 8) % bytes;
        char **place = &places[(random >> 20) % PLACES];
        switch ((random >> 12) % 16) {
        case 0: *place = realloc(*place, bytes); break;
        case 1: free(*place); *place = calloc(bytes, 1); break;
        default: free(*place); *place = malloc(bytes);
        }
        touch(*place, bytes);
    }
    for (int at = 0; at < PLACES; at++) free(places[at]);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return puts("expected threads and steps") < 0 ? 1 : 2;
    long threads = atol(arguments[1]);
    steps = atol(arguments[2]);
    pthread_t started[64];
    if (threads < 1 || threads > 64) return 2;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, (void *)(i + 1))) return 1;
    for (long i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return 0;
}
