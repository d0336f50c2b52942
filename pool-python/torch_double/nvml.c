/* A stand-in for libnvidia-ml.so.1, as far as PyTorch 2.15 looks its functions up: a device that has
 * neither NVLink nor the fabric that shares memory between machines. */
#include <stddef.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    static char some_device;
    if (!bus || !device) return INVALID_ARGUMENT;
    *device = &some_device;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    if (!count) return INVALID_ARGUMENT;
    *count = 0;
    return SUCCESS;
}

/* nvmlGpuFabricInfoV_t. */
struct Fabric {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state; /* 0: there is none */
};

int nvmlDeviceGetGpuFabricInfoV(void *device, struct Fabric *told) {
    (void)device;
    if (!told) return INVALID_ARGUMENT;
    told->status = SUCCESS;
    told->state = 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlSystemGetCudaDriverVersion_v2(void) { return NOT_SUPPORTED; }
