// Windows of blocks of random sizes, as `bench --threads` has them for Rust.
//
// With `own` each thread replaces its own blocks at random. With `pass` each sends batches of 16 blocks
// (fewer where it has few) to the next thread, which frees them; one whose box is full keeps its batch.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 64, MOST_LIVE = 4096, BATCH = 16, PAGE = 4096 };

struct box {
    pthread_mutex_t lock;
    size_t batches;
    char *blocks[MOST_LIVE];
};

static struct box boxes[MOST_THREADS];
static size_t threads, least, most, live, batch, operations;
static int passes;

static size_t next(unsigned long *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static char *allocate(unsigned long *random) {
    size_t bytes = least + next(random) % (most - least + 1);
    char *block = malloc(bytes);
    if (!block) abort();
    // Few blocks are large: of these, each page is written.
    for (size_t at = 0; at < bytes; at += live < 1000 ? PAGE : bytes) block[at] = 1;
    return block;
}

static void own(size_t number, unsigned long random) {
    (void)number;
    char *blocks[MOST_LIVE] = {0};
    for (size_t i = 0; i < operations; i++) {
        char *block = allocate(&random);
        char **place = &blocks[next(&random) % live];
        free(*place);
        *place = block;
    }
    for (size_t at = 0; at < live; at++) free(blocks[at]);
}

// Whether the box had room for a batch.
static int send(struct box *box, char **blocks) {
    pthread_mutex_lock(&box->lock);
    int fits = (box->batches + 1) * batch <= live;
    if (fits) memcpy(&box->blocks[box->batches++ * batch], blocks, batch * sizeof *blocks);
    pthread_mutex_unlock(&box->lock);
    return fits;
}

static size_t receive(struct box *box, char **blocks) {
    pthread_mutex_lock(&box->lock);
    size_t count = box->batches ? batch : 0;
    if (count) memcpy(blocks, &box->blocks[--box->batches * batch], batch * sizeof *blocks);
    pthread_mutex_unlock(&box->lock);
    return count;
}

static void pass(size_t number, unsigned long random) {
    char *outgoing[BATCH], *incoming[2 * BATCH];
    size_t out = 0, in = 0;
    for (size_t i = 0; i < operations; i++) {
        outgoing[out++] = allocate(&random);
        if (out == batch) {
            if (!send(&boxes[(number + 1) % threads], outgoing)) {
                memcpy(&incoming[in], outgoing, batch * sizeof *outgoing);
                in += batch;
            }
            out = 0;
        }
        if (!in) in = receive(&boxes[number], incoming);
        if (in) free(incoming[--in]);
    }
    while (out) free(outgoing[--out]);
    while (in) free(incoming[--in]);
}

static void *work(void *given) {
    size_t number = (size_t)given;
    unsigned long random = 88172645463325252ul + number * 7919;
    (passes ? pass : own)(number, random);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 7) return puts("expected own or pass, threads, least, most, live, operations") < 0 ? 1 : 2;
    passes = !strcmp(arguments[1], "pass");
    size_t *numbers[] = {&threads, &least, &most, &live, &operations};
    for (int i = 0; i < 5; i++) *numbers[i] = strtoul(arguments[i + 2], NULL, 10);
    batch = live / 2 < BATCH ? live / 2 : BATCH;
    if (!threads || threads > MOST_THREADS || !batch || live > MOST_LIVE || !least || most < least) return 2;
    pthread_t started[MOST_THREADS];
    for (size_t i = 0; i < threads; i++) pthread_mutex_init(&boxes[i].lock, NULL);
    for (size_t i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, (void *)i)) return 1;
    for (size_t i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return 0;
}
