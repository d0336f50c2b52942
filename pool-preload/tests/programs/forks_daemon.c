// The descriptor of stderr that the library keeps is the process's own: a child that goes on after
// it holds no reader of stderr up.
#include "check.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 900 };

int main(void) {
    CHECK(fcntl(KEPT, F_GETFD) >= 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(fcntl(KEPT, F_GETFD) < 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return puts("done") < 0;
}
