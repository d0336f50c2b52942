// The library leaves no error of the dynamic linker behind.
#include "check.h"
#include <dlfcn.h>

int main(void) {
    CHECK(dlerror() == NULL);
    return puts("done") < 0;
}
