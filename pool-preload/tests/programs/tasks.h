// Looks at the threads of the process by their files in /proc/self/task.
#include "check.h"
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

// Returns the value of a field of a thread's status; its text up to the end of the line.
static inline const char *status_of(int task, const char *field) {
    static char line[512];
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", task);
    FILE *file = fopen(path, "r");
    if (!file) return NULL; // it has ended
    size_t length = strlen(field);
    const char *found = NULL;
    while (!found && fgets(line, sizeof line, file))
        if (!strncmp(line, field, length) && line[length] == ':') {
            found = line + length + 1 + strspn(line + length + 1, " \t");
            line[strcspn(line, "\n")] = 0;
        }
    fclose(file);
    return found;
}

static inline unsigned long long bits_of(int task, const char *field) {
    const char *text = status_of(task, field);
    CHECK(text);
    return strtoull(text, NULL, 16);
}

// Allocates until the library has its thread, and waits until the thread has its name, which it takes
// when it has given up what it need not have. Returns its number. An alarm ends a wait without end.
static inline int wait_for_thread(void) {
    alarm(60);
    for (int i = 0; i < 8; i++) {
        char *block = malloc(2 << 20);
        CHECK(block);
        block[0] = 1;
    }
    for (;;) {
        DIR *tasks = opendir("/proc/self/task");
        CHECK(tasks);
        int found = 0;
        for (struct dirent *entry; (entry = readdir(tasks));) {
            int task = atoi(entry->d_name);
            const char *name = task ? status_of(task, "Name") : NULL;
            if (name && !strcmp(name, "bucketpool")) found = task;
        }
        closedir(tasks);
        if (found) return found;
        sched_yield();
    }
}
