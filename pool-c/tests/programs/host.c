// All functions on host memory, with what other libraries would pass, and in a forked child.
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static void arguments(void) {
    const bp_pool *pool = NULL;
    void *at = NULL;
    CHECK(bp_abi() == BP_ABI && strlen(bp_version()) > 0);
    REFUSED(bp_pool_new(NULL, "disk", 0, &pool), BP_INVALID, "memory \"disk\"");
    REFUSED(bp_pool_new(NULL, NULL, 0, &pool), BP_INVALID, "expected \"cuda\"");
    REFUSED(bp_pool_new("policy = 'none'", "host", 0, &pool), BP_INVALID, "none");
    REFUSED(bp_pool_new("polcy = 'arena'", "host", 0, &pool), BP_INVALID, "polcy");
    REFUSED(bp_pool_new(NULL, "host", 0, NULL), BP_INVALID, "null pointer");
    CHECK(pool == NULL);
    REFUSED(bp_alloc(NULL, 10, 0, NULL, &at), BP_INVALID, "null pool");
    REFUSED(bp_free(NULL, (void *)4096, NULL), BP_INVALID, "null pool");
    OK(bp_free(NULL, NULL, NULL));
    OK(bp_pool_drop(NULL));
    CHECK(bp_pool_clone(NULL) == NULL);
    bp_error small = {.size = 1};
    CHECK(bp_last_error(NULL) == BP_INVALID && bp_last_error(&small) == BP_INVALID);
    bp_text_free(NULL);
}

static void blocks(const char *settings) {
    const bp_pool *pool = NULL;
    void *at = NULL, *other = NULL;
    OK(bp_pool_new(settings, "host", 0, &pool));
    OK(bp_alloc(pool, 0, 0, NULL, &at));
    CHECK(at == NULL);
    OK(bp_free_here(pool, at));
    REFUSED(bp_alloc(pool, 100, 3, NULL, &at), BP_INVALID, "alignment of 3");
    REFUSED(bp_alloc(pool, 100, 0, NULL, NULL), BP_INVALID, "null pointer");
    OK(bp_alloc(pool, 100, 0, NULL, &at));
    memset(at, 7, 100);
    OK(bp_alloc(pool, 5000, 256, NULL, &other));
    CHECK((size_t)other % 256 == 0 && other != at);
    memset(other, 8, 5000);
    CHECK(((char *)at)[99] == 7);

    bp_block found = {.size = sizeof found};
    OK(bp_lookup(pool, (char *)other + 4999, &found));
    CHECK((void *)found.base == other && found.bytes == 5000 && found.rounded_bytes >= 5000);
    REFUSED(bp_lookup(pool, &found, &found), BP_UNKNOWN, "no block");
    REFUSED(bp_lookup(pool, NULL, &found), BP_UNKNOWN, "no block");
    found.size = 4;
    REFUSED(bp_lookup(pool, at, &found), BP_INVALID, "4 bytes");

    // Addresses that are no block's, and a block that is freed twice.
    REFUSED(bp_free(pool, (char *)at + 1, NULL), BP_UNKNOWN, "no block");
    REFUSED(bp_record(pool, &found, NULL), BP_UNKNOWN, "no block");
    REFUSED(bp_use(pool, &found, NULL, 1), BP_UNKNOWN, "no block");
    REFUSED(bp_hold(pool, &found), BP_UNKNOWN, "no block");
    OK(bp_hold(pool, at));
    OK(bp_free(pool, at, NULL));
    CHECK(((char *)at)[99] == 7);
    OK(bp_free_here(pool, at));
    REFUSED(bp_free(pool, at, NULL), BP_UNKNOWN, "no block");

    bp_figures figures = {.size = sizeof figures};
    OK(bp_stats(pool, &figures));
    CHECK(figures.live_blocks == 1 && figures.requested_bytes == 5000 && figures.limit_bytes == UINT64_MAX);
    CHECK(figures.requested_peak_bytes == 5100 && figures.reserved_bytes >= 5000);
    OK(bp_reset_peaks(pool));
    OK(bp_stats(pool, &figures));
    CHECK(figures.requested_peak_bytes == 5000);
    char *json = NULL;
    OK(bp_stats_json(pool, &json));
    CHECK(strstr(json, "\"allocated_bytes.all.current\":") && strstr(json, "\"memory\":\"host\""));
    bp_text_free(json);
    OK(bp_map_json(pool, &json));
    CHECK(strstr(json, "\"Used\""));
    bp_text_free(json);
    REFUSED(bp_report(pool, ""), BP_INVALID, "path");
    REFUSED(bp_report(pool, "/nowhere/at/all"), BP_OTHER, "/nowhere/at/all");
    REFUSED(bp_private_begin(pool, 1, 0, NULL, NULL, NULL), BP_UNSUPPORTED, "graphs");
    REFUSED(bp_set_fraction(pool, 1.5, NULL), BP_INVALID, "1.5");
    uint64_t given = 1;
    OK(bp_free(pool, other, NULL));
    OK(bp_clear(pool, &given));
    OK(bp_stats(pool, &figures));
    CHECK(figures.reserved_bytes == 0 && given > 0);
    OK(bp_reset_counts(pool));
    OK(bp_pool_drop(pool));
}

// A block that outlives its pool's owners.
static void outlives(void) {
    const bp_pool *pool = NULL;
    void *at = NULL;
    OK(bp_pool_new(NULL, "host", 0, &pool));
    CHECK(bp_pool_clone(pool) == pool);
    OK(bp_alloc(pool, 1000, 0, NULL, &at));
    OK(bp_pool_drop(pool));
    memset(at, 1, 1000);
    OK(bp_pool_drop(pool));
    memset(at, 2, 1000);
    OK(bp_free_here(pool, at));
}

static int asked, told;
static size_t missing;
static const bp_pool *limited;
static void *spare;
static int on_shortage(void *context, size_t bytes) {
    asked += *(int *)context;
    missing = bytes;
    if (!spare) return 0;
    CHECK(bp_free_here(limited, spare) == BP_OK); // the pool holds no lock
    spare = NULL;
    return 1;
}
static void on_oom(void *context, const char *text) {
    told += *(int *)context;
    // A refusal inside of the hook leaves it the text.
    REFUSED(bp_alloc(limited, 10, 3, NULL, &spare), BP_INVALID, "power of two");
    CHECK(strstr(text, "limit"));
}

static void hooks(void) {
    int one = 1;
    void *at = NULL, *next = NULL;
    OK(bp_pool_new("policy = 'pow2'\nreserved_limit = '1M'", "host", 0, &limited));
    OK(bp_on_shortage(limited, on_shortage, &one));
    OK(bp_on_oom(limited, on_oom, &one));
    OK(bp_alloc(limited, 600000, 0, NULL, &spare));
    OK(bp_alloc(limited, 600000, 0, NULL, &at));
    CHECK(asked == 1 && missing > 0 && told == 0);
    REFUSED(bp_alloc(limited, 600000, 0, NULL, &next), BP_OUT_OF_MEMORY, "limit");
    CHECK(told == 1 && next == NULL);
    bp_error error = {.size = sizeof error};
    OK(bp_last_error(&error));
    CHECK(error.status == BP_OUT_OF_MEMORY && strcmp(error.verdict, "Limit") == 0);
    OK(bp_on_oom(limited, NULL, NULL));
    OK(bp_on_shortage(limited, NULL, NULL));
    uint64_t given = 0;
    OK(bp_free_here(limited, at));
    OK(bp_set_limit(limited, 1000, &given));
    CHECK(given >= 600000);
    OK(bp_pool_drop(limited));
}

static void devices(void) {
    const bp_pool *one = NULL, *same = NULL;
    OK(bp_set_devices("policy = 'pow2'", "host"));
    OK(bp_pool_of_device("host", 0, &one));
    OK(bp_pool_of_device("host", 5, &same)); // there is one host
    CHECK(one == same);
    REFUSED(bp_set_devices("policy = 'exact'", "host"), BP_INVALID, "in use");
    void *at = NULL;
    OK(bp_alloc(one, 5000, 0, NULL, &at));
    bp_block found = {.size = sizeof found};
    OK(bp_lookup(one, at, &found));
    CHECK(found.rounded_bytes == 8192);
    OK(bp_free_here(one, at));
    OK(bp_pool_drop(one));
    OK(bp_pool_drop(same));
    OK(bp_alloc(one, 10, 0, NULL, &at)); // it lives as long as the process
    OK(bp_free_here(one, at));
}

static void forked(void) {
    const bp_pool *pool = NULL;
    void *at = NULL;
    OK(bp_pool_new(NULL, "host", 0, &pool));
    OK(bp_alloc(pool, 1000, 0, NULL, &at));
    pid_t child = fork();
    if (child == 0) {
        void *none = NULL;
        bp_error error = {.size = sizeof error};
        int wrong = bp_alloc(pool, 10, 0, NULL, &none) != BP_FORKED || none != NULL;
        wrong |= bp_free(pool, at, NULL) != BP_FORKED || bp_pool_drop(pool) != BP_FORKED;
        wrong |= bp_last_error(&error) != BP_OK || !strstr(error.text, "forked");
        _exit(wrong);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(bp_free(pool, at, NULL));
    OK(bp_pool_drop(pool));
}

int main(void) {
    arguments();
    blocks(NULL);
    blocks("policy = 'exact'");
    outlives();
    hooks();
    devices();
    forked();
    puts("host: passed");
    return 0;
}
