// The library's thread has no privilege that the program may drop without it, and none that the program
// needs it to have: glibc aborts if `setuid` is refused on one thread only.
#define _GNU_SOURCE
#include "tasks.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { SETGID = 1 << 6, SETUID = 1 << 7 };

int main(void) {
    unsigned long long before = bits_of(getpid(), "NoNewPrivs");
    int thread = wait_for_thread();
    // Under a filter the thread makes no call that the filter might not know.
    int is_filtered = bits_of(getpid(), "Seccomp") == 2;
    unsigned long long own = bits_of(getpid(), "CapPrm");
    unsigned long long kept = is_filtered ? own : own & (SETGID | SETUID);
    CHECK(bits_of(thread, "CapPrm") == kept);
    CHECK(is_filtered || bits_of(thread, "CapEff") == (bits_of(getpid(), "CapEff") & kept));
    CHECK(is_filtered || bits_of(thread, "CapInh") == 0);
    CHECK(is_filtered || bits_of(thread, "CapAmb") == 0);
    CHECK(is_filtered || bits_of(thread, "NoNewPrivs") == 1);
    CHECK(bits_of(getpid(), "NoNewPrivs") == before);
    // A user namespace may have one user only.
    if (geteuid() == 0 && (own & SETUID) && (own & SETGID) && setgroups(0, NULL) == 0 && seteuid(65534) == 0) {
        CHECK(seteuid(0) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
        CHECK(!strncmp(status_of(thread, "Uid"), "65534\t65534\t65534", 17));
        CHECK(setuid(0) == -1);
        CHECK(bits_of(thread, "CapPrm") == 0 && bits_of(thread, "CapEff") == 0);
    } else {
        CHECK(setgid(getgid()) == 0 && setuid(getuid()) == 0);
    }
    return puts("done") < 0;
}
