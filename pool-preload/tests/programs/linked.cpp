// A library that the program is linked with: its constructors run before those of the preloaded one.
#include <cstring>
#include <new>
#include <vector>

static int *numbers = new int[10];
static std::vector<double> values(20000, 1.0);

struct AtExit {
    ~AtExit() { delete[] numbers; }
};
static AtExit at_exit;

extern "C" double linked() {
    std::memset(numbers, 0, 10 * sizeof *numbers);
    return values.back();
}
