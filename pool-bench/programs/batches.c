// Batches of small blocks, freed in another order than they were allocated: as sh6bench does.
//
// Each thread keeps 3000 places. It fills them with blocks of 1 to 1000 bytes in groups of one size,
// then frees every second place from the front and the others from the back.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PLACES = 3000 };
static long rounds;

static void fill(char **places, unsigned *random) {
    for (int at = 0; at < PLACES;) {
        *random = *random * 1103515245u + 12345u;
        size_t bytes = 1 + (*random >> 16) % 1000 / (1 + (*random >> 8) % 8);
        for (int group = 0; group < 50 && at < PLACES; group++, at++) {
            places[at] = malloc(bytes);
            if (!places[at]) abort();
            places[at][0] = places[at][bytes - 1] = (char)bytes;
        }
    }
}

static void *work(void *number) {
    char **places = calloc(PLACES, sizeof *places);
    unsigned random = (unsigned)(size_t)number;
    if (!places) abort();
    for (long round = 0; round < rounds; round++) {
        fill(places, &random);
        for (int at = 0; at < PLACES; at += 2) free(places[at]);
        for (int at = PLACES - 1; at > 0; at -= 2) free(places[at]);
    }
    free(places);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return puts("expected threads and rounds") < 0 ? 1 : 2;
    long threads = atol(arguments[1]);
    rounds = 20 * atol(arguments[2]);
    pthread_t started[64];
    if (threads < 1 || threads > 64) return 2;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, (void *)(i + 1))) return 1;
    for (long i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return 0;
}
