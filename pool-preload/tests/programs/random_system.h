// The kinds of calls of `random_calls.c`.
#include "random_blocks.h"
#include "random_filters.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

enum kind {
    HANDLER,         // a timer, whose handler makes calls that a handler may make
    FORK_IN_HANDLER, // the same with fork
    FORK,            // a child that allocates, and sometimes goes on instead of its parent
    RAW_FORK,        // the same by _Fork or the system call
    VFORK,           // a child of vfork that allocates and executes another program
    RAW_THREAD,      // a child in the same memory, as posix_spawn makes
    SPAWN,           // posix_spawn
    THREADS,         // threads that allocate, exchange blocks, end and are cancelled
    LOADED,          // a library is loaded and unloaded
    ADDRESS_LIMIT,   // RLIMIT_AS
    DATA_LIMIT,      // RLIMIT_DATA
    OTHER_LIMITS,    // RLIMIT_STACK, RLIMIT_NPROC, RLIMIT_NOFILE
    MAPPINGS,        // as many mappings as the process may have, or nearly
    PAGES,           // mprotect, madvise and mlock on pages of a block, undone
    CLOSES,          // all descriptors are closed
    PERSONALITY,     // pages that may be read may be executed
    TRIM,            // malloc_trim, mallinfo2
    ALL_PERMITTED,   // a filter that permits all
    FILTERS,         // those below limit what follows
    PLAIN_MREMAP = FILTERS,
    MALLOC_CALLS,
    MALLOC_ARGUMENTS,
    STRICT,
    KINDS,
};

enum { WORKERS = 3 };

static struct table *table;
static const char *library;
static pthread_t workers[WORKERS];
static int is_working[WORKERS], pipes[2] = {-1, -1}, handler_forks;
static atomic_int stops;
static _Atomic(char *) exchanged[8];
static struct rlimit first_limits[RLIM_NLIMITS];

static void start_system(const char *path, struct table *own) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_CORE, &none) == 0 && pipe2(pipes, O_NONBLOCK | O_CLOEXEC) == 0);
    for (int limit = 0; limit < RLIM_NLIMITS; limit++) getrlimit(limit, &first_limits[limit]);
    library = path, table = own;
}

// Waits for a child. One that was ended by a signal ends this process as well, as one that failed does.
static void join_child(pid_t child) {
    int status;
    if (child < 0) return; // a limit
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    if (WEXITSTATUS(status)) _exit(WEXITSTATUS(status));
}

static void set_timer(int microseconds) {
    struct itimerval time = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void on_alarm(int signal) {
    int error = errno, is_forking = handler_forks > 0;
    struct timespec now;
    char byte = (char)signal;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1) byte = 0;
    if (is_forking) {
        handler_forks--;
        pid_t child = fork();
        if (child == 0) _exit(0);
        join_child(child);
    }
    errno = error;
}

static void handle(int forks) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    handler_forks = forks;
    set_timer(forks ? 150 : 400);
}

static void run_child(void) {
    alarm(0);
    for (int i = 0; i < SLOTS; i += 8) check(table->blocks[i]);
    work(table, 40);
}

// Permits the timer, or not. While the C library forks or unloads a library, it has a lock for which a fork in a
// handler would wait without end, whatever the malloc.
static void permit_timer(int permitted) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    CHECK(sigprocmask(permitted ? SIG_UNBLOCK : SIG_BLOCK, &alarm, NULL) == 0);
}

// Ends the parent with the status of a child that goes on.
static void fork_by(pid_t (*by)(void)) {
    static int depth;
    int goes_on = below(&table->random, 8) == 0 && depth < 3;
    permit_timer(0);
    pid_t child = by();
    permit_timer(1);
    if (child) {
        join_child(child);
        if (goes_on && child > 0) _exit(0);
        return;
    }
    memset(is_working, 0, sizeof is_working);
    depth++;
    run_child();
    if (!goes_on) _exit(0);
}

static pid_t raw_fork(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void run_vfork(void) {
    static struct block volatile none;
    struct block *slot = &table->blocks[below(&table->random, SLOTS)];
    pid_t child = vfork();
    if (child == 0) {
        if (slot->at) release(table, slot);
        allocate(table, slot);
        if (none.at) _exit(1);
        execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    join_child(child);
}

static int in_same_memory(void *argument) {
    work(argument, 30);
    return 0;
}

static void run_raw_thread(void) {
    static char stack[256 << 10] __attribute__((aligned(64)));
    join_child(clone(in_same_memory, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, table));
}

static void run_spawn(void) {
    pid_t child;
    char *arguments[] = {"true", NULL};
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0) join_child(child);
}

// Takes the block of a place, and leaves one of this thread there.
static void exchange(uint64_t *random) {
    size_t bytes = sizeof(size_t) + 1 + below(random, 200000);
    char *block = malloc(bytes);
    if (is_served(block)) {
        memcpy(block, &bytes, sizeof bytes);
        block[bytes - 1] = (char)bytes;
    }
    char *other = atomic_exchange(&exchanged[below(random, 8)], block);
    if (other) {
        memcpy(&bytes, other, sizeof bytes);
        CHECK(other[bytes - 1] == (char)bytes);
    }
    free(other);
}

static void free_table(void *table) {
    release_all(table);
    free(table);
}

static void *run_worker(void *seed) {
    struct table *mine = calloc(1, sizeof *mine);
    if (!is_served(mine)) return NULL;
    mine->random = (uintptr_t)seed;
    pthread_cleanup_push(free_table, mine);
    while (!stops) {
        work(mine, 50);
        for (int i = 0; i < 10; i++) exchange(&mine->random);
        pthread_testcancel();
        sched_yield();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void start_or_end_worker(void) {
    int number = (int)below(&table->random, WORKERS);
    if (!is_working[number]) {
        void *seed = (void *)(uintptr_t)next(&table->random);
        is_working[number] = pthread_create(&workers[number], NULL, run_worker, seed) == 0;
        return;
    }
    CHECK(pthread_cancel(workers[number]) == 0 && pthread_join(workers[number], NULL) == 0);
    is_working[number] = 0;
}

static void load(void) {
    void *loaded = dlopen(library, below(&table->random, 2) ? RTLD_NOW : RTLD_LAZY);
    if (!loaded) return; // a limit, or no descriptor
    int (*work)(int) = (int (*)(int))dlsym(loaded, "loaded_work");
    CHECK(work && work(1 + (int)below(&table->random, 100000)) == 2);
    if (below(&table->random, 4) == 0) return;
    permit_timer(0);
    CHECK(dlclose(loaded) == 0);
    permit_timer(1);
}

// Bytes in a line of /proc/self/status, without an allocation; 0 without descriptors.
static size_t status_bytes(const char *line) {
    static char text[4096];
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = 0;
    char *found = strstr(text, line);
    return found ? strtoull(found + strlen(line), NULL, 10) * 1024 : 0;
}

static void limit(int resource, size_t bytes) {
    struct rlimit limit = first_limits[resource];
    if (bytes < limit.rlim_max) limit.rlim_cur = bytes;
    if (setrlimit(resource, &limit) == 0 && (resource == RLIMIT_AS || resource == RLIMIT_DATA)) limits = 1;
}

static void unlimit(int resource) { setrlimit(resource, &first_limits[resource]); }

static void limit_addresses(void) {
    size_t now = status_bytes("VmSize:"), much = 256 << 20;
    switch (below(&table->random, 4)) {
    case 0: unlimit(RLIMIT_AS); break;
    case 1: limit(RLIMIT_AS, 4ul << 30); break;
    case 2: limit(RLIMIT_AS, 1ul << 30); break;
    default: if (now) limit(RLIMIT_AS, now + much);
    }
}

static void limit_data(void) {
    size_t now = status_bytes("VmData:"), much = 256 << 20;
    if (now && below(&table->random, 4))
        limit(RLIMIT_DATA, now + much);
    else
        unlimit(RLIMIT_DATA);
}

static void limit_others(void) {
    switch (below(&table->random, 4)) {
    case 0: limit(RLIMIT_STACK, 1 << 20); break;
    case 1: limit(RLIMIT_NPROC, below(&table->random, 3)); break;
    case 2: limit(RLIMIT_NOFILE, 3 + below(&table->random, 30)); break;
    default: unlimit(RLIMIT_NPROC), unlimit(RLIMIT_NOFILE);
    }
}

// Fills the mappings of the process, leaves a few to it, works, and ends them. A block grows where it has
// a neighbour.
static void fill_mappings(void) {
    enum { STEP = 8192, MOST = 70000, LARGE = 5 << 20 };
    struct block large = {malloc(LARGE), LARGE}, neighbour = {malloc(LARGE), LARGE}, gone = {malloc(3 * LARGE), 3 * LARGE};
    char *range = mmap(NULL, (size_t)MOST * STEP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t count = 0, left = below(&table->random, 12) / 2;
    if (large.at) fill(large);
    if (neighbour.at) fill(neighbour);
    while (range != MAP_FAILED && count < MOST && mprotect(range + count * STEP, STEP / 2, PROT_READ) == 0) count++;
    while (left-- > 0 && count > 0) count--, mprotect(range + count * STEP, STEP / 2, PROT_NONE);
    int before = limits;
    limits = 1;
    free(gone.at);
    while (large.at && large.bytes < 3 * LARGE && resize(&large, large.bytes + LARGE)) {}
    work(table, 300);
    check(large), check(neighbour);
    free(large.at), free(neighbour.at);
    limits = before;
    if (range != MAP_FAILED) munmap(range, (size_t)MOST * STEP);
}

static void change_pages(void) {
    size_t bytes = (1 + below(&table->random, 2000)) * 4096;
    struct block block = {aligned_alloc(4096, bytes), bytes};
    if (!is_served(block.at)) return;
    fill(block);
    switch (below(&table->random, 6)) {
    case 0: mprotect(block.at, bytes, PROT_READ), check(block), mprotect(block.at, bytes, PROT_READ | PROT_WRITE); break;
    case 1: mlock(block.at, bytes), munlock(block.at, bytes); break;
    case 2: madvise(block.at, bytes, MADV_DONTNEED), check_zero(block), fill(block); break;
    case 3: madvise(block.at, bytes, MADV_DONTFORK), madvise(block.at, bytes, MADV_DOFORK); break;
    case 4: madvise(block.at, bytes, MADV_HUGEPAGE); break;
    default: madvise(block.at, bytes, MADV_DONTDUMP);
    }
    check(block);
    free(block.at);
}

static void stop_all(void) {
    set_timer(0);
    stops = 1;
    for (int i = 0; i < WORKERS; i++)
        if (is_working[i]) CHECK(pthread_join(workers[i], NULL) == 0);
    memset(is_working, 0, sizeof is_working);
    stops = 0;
}

static void call(enum kind kind) {
    switch (kind) {
    case HANDLER: handle(0); break;
    case FORK_IN_HANDLER: handle(10); break;
    case FORK: fork_by(fork); break;
    case RAW_FORK: fork_by(below(&table->random, 2) ? _Fork : raw_fork); break;
    case VFORK: run_vfork(); break;
    case RAW_THREAD: run_raw_thread(); break;
    case SPAWN: run_spawn(); break;
    case THREADS: start_or_end_worker(); break;
    case LOADED: load(); break;
    case ADDRESS_LIMIT: limit_addresses(); break;
    case DATA_LIMIT: limit_data(); break;
    case OTHER_LIMITS: limit_others(); break;
    case MAPPINGS: fill_mappings(); break;
    case PAGES: change_pages(); break;
    case CLOSES: closefrom(0), pipes[0] = pipes[1] = -1; break;
    case PERSONALITY: personality(below(&table->random, 2) ? READ_IMPLIES_EXEC : 0); break;
    case TRIM: malloc_trim(below(&table->random, 2) << 20), mallinfo2(); break;
    case ALL_PERMITTED: permit_all(); break;
    default: break;
    }
}
