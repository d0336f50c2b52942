// Forks while other threads are in stdio, which allocates under its locks. The C library's `fork` takes
// the lock of the list of files after all handlers, and `fflush(NULL)` has it while it waits for a file
// that another thread reads or writes.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>

enum { FORKS = 300, LINES = 12 };
static atomic_int is_done;
static atomic_long lines;
static char text[LINES * 300000];
static size_t length;

// `getline` grows its block under the lock of the file.
static void *read_lines(void *nothing) {
    while (!is_done) {
        FILE *file = fmemopen(text, length, "r");
        CHECK(file);
        char *line = NULL;
        size_t size = 0;
        ssize_t count;
        while ((count = getline(&line, &size, file)) > 0) {
            CHECK(line[0] == 'a' && line[count - 2] == 'a' && line[count - 1] == '\n');
            lines++;
            free(line);
            line = NULL;
            size = 0;
        }
        free(line);
        fclose(file);
    }
    return nothing;
}

// A stream whose write function allocates, under the lock of the file and that of the list of files.
static ssize_t write_large(void *cookie, const char *bytes, size_t count) {
    (void)cookie;
    char *block = malloc(200000 + count);
    CHECK(block);
    memcpy(block + 200000, bytes, count);
    free(block);
    return (ssize_t)count;
}

static void *flush(void *nothing) {
    cookie_io_functions_t functions = {.write = write_large};
    FILE *file = fopencookie(NULL, "w", functions);
    CHECK(file);
    while (!is_done) {
        CHECK(fputs("text", file) >= 0);
        fflush(NULL);
    }
    fclose(file);
    return nothing;
}

int main(void) {
    alarm(100); // ends a process that stands still
    for (int line = 0; line < LINES; line++) {
        size_t count = 100000 + 17000 * (size_t)line;
        memset(text + length, 'a', count);
        length += count;
        text[length++] = '\n';
    }
    pthread_t threads[3];
    CHECK(pthread_create(&threads[0], NULL, read_lines, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, read_lines, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, flush, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        long before = lines;
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            alarm(50);
            char *block = malloc(300000);
            _exit(block == NULL);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        while (lines == before) sched_yield(); // the readers go on between forks
    }
    is_done = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return puts("done") < 0;
}
