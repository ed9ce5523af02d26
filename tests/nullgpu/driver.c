/* Stands in for libcuda (virtual memory for expandable segments, contexts) and libnvidia-ml. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

#define ENTER(does)                              \
    do {                                         \
        int code_ = enter(__func__, does, NULL); \
        if (code_) return code_;                 \
    } while (0)

#define STAND_IN(name, answer) \
    int name(void) { return stub(#name, NEEDS_DRIVER, answer); }

enum { INVALID = 1, NO_MEMORY = 2, BAD_DEVICE = 101, NOT_SUPPORTED = 801 };
static const size_t GRANULARITY = 2 << 20;

/* ---- the driver ---- */

int cuInit(unsigned flags) {
    (void)flags;
    ENTER(NEEDS_DRIVER);
    return 0;
}

int cuDriverGetVersion(int *version) {
    extern int cudaDriverGetVersion(int *);
    return cudaDriverGetVersion(version);
}

int cuDeviceGetCount(int *count) {
    ENTER(NEEDS_DRIVER);
    *count = visible_count();
    return 0;
}

int cuDeviceGet(int *device, int number) {
    ENTER(NEEDS_DRIVER);
    *device = number;
    return number >= 0 && number < visible_count() ? 0 : BAD_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device) {
    ENTER(NEEDS_DRIVER);
    if (device < 0 || device >= visible_count()) return BAD_DEVICE;
    snprintf(name, (size_t)size, "%s", visible_unit(device)->name);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    extern int cudaDeviceGetAttribute(int *, int, int);
    switch (attribute) {
    case 102: case 103: /* virtual memory management, POSIX file descriptors as handles */
        ENTER(NEEDS_DRIVER);
        *value = 1;
        return 0;
    default: return cudaDeviceGetAttribute(value, attribute, device);
    }
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    ENTER(NEEDS_DRIVER);
    *flags = 0;
    *active = has_context(device);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    ENTER(NEEDS_CONTEXT);
    *context = (void *)"context";
    return 0;
}

int cuCtxGetCurrent(void **context) {
    ENTER(NEEDS_DRIVER);
    *context = has_context(current_device()) ? (void *)"context" : NULL;
    return 0;
}

int cuCtxSetCurrent(void *context) {
    (void)context;
    ENTER(NEEDS_CONTEXT);
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    const char *(*real)(int) = NULL;
    void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    if (runtime) real = (const char *(*)(int))dlsym(runtime, "cudaGetErrorString");
    *text = real ? real(code) : "unknown error";
    return 0;
}

/* ---- virtual memory: a handle is memory that is counted; mapping it makes its addresses usable ---- */

struct physical {
    size_t size;
    int device, holders; /* the handle itself, and each mapping */
    struct physical *next;
};
struct mapping {
    char *start;
    size_t size;
    struct physical *physical;
    struct mapping *next;
};
static struct mapping *mappings;
static pthread_mutex_t mapping_mutex = PTHREAD_MUTEX_INITIALIZER;

static void let_go(struct physical *physical) {
    if (--physical->holders > 0) return;
    machine_hold(visible_index(physical->device), -(int64_t)physical->size);
    free(physical);
}

int cuMemGetAllocationGranularity(size_t *granularity, const void *prop, int option) {
    (void)prop, (void)option;
    ENTER(NEEDS_DRIVER);
    *granularity = GRANULARITY;
    return 0;
}

int cuMemAddressReserve(uintptr_t *address, size_t size, size_t alignment, uintptr_t wanted, unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    ENTER(NEEDS_CONTEXT);
    char *start = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NO_MEMORY;
    *address = ((uintptr_t)start + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    return 0;
}

int cuMemAddressFree(uintptr_t address, size_t size) {
    ENTER(NEEDS_CONTEXT);
    munmap((void *)address, size);
    return 0;
}

int cuMemCreate(struct physical **handle, size_t size, const int *prop, unsigned long long flags) {
    (void)flags;
    ENTER(NEEDS_CONTEXT | ALLOCATES);
    int device = prop[3]; /* CUmemAllocationProp: type, requestedHandleTypes, location.type, location.id */
    if (device < 0 || device >= visible_count()) return BAD_DEVICE;
    if (machine_hold(visible_index(device), (int64_t)size) != 0) return NO_MEMORY;
    *handle = calloc(1, sizeof **handle);
    **handle = (struct physical){.size = size, .device = device, .holders = 1};
    return 0;
}

int cuMemRelease(struct physical *handle) {
    ENTER(NEEDS_CONTEXT);
    pthread_mutex_lock(&mapping_mutex);
    let_go(handle);
    pthread_mutex_unlock(&mapping_mutex);
    return 0;
}

int cuMemMap(uintptr_t address, size_t size, size_t offset, struct physical *handle, unsigned long long flags) {
    (void)offset, (void)flags;
    ENTER(NEEDS_CONTEXT);
    struct mapping *mapping = calloc(1, sizeof *mapping);
    pthread_mutex_lock(&mapping_mutex);
    *mapping = (struct mapping){(char *)address, size, handle, mappings};
    mappings = mapping;
    handle->holders++;
    pthread_mutex_unlock(&mapping_mutex);
    add_block(mapping->start, size, BLOCK_DEVICE, handle->device);
    return 0;
}

int cuMemSetAccess(uintptr_t address, size_t size, const void *access, size_t count) {
    (void)access, (void)count;
    ENTER(NEEDS_CONTEXT);
    return mprotect((void *)address, size, PROT_READ | PROT_WRITE) == 0 ? 0 : INVALID;
}

int cuMemUnmap(uintptr_t address, size_t size) {
    ENTER(NEEDS_CONTEXT | WAITS);
    pthread_mutex_lock(&mapping_mutex);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        struct block block;
        if ((uintptr_t)mapping->start < address || (uintptr_t)mapping->start >= address + size) {
            link = &mapping->next;
            continue;
        }
        remove_block(mapping->start, &block);
        madvise(mapping->start, mapping->size, MADV_DONTNEED);
        mprotect(mapping->start, mapping->size, PROT_NONE);
        let_go(mapping->physical);
        *link = mapping->next;
        free(mapping);
    }
    pthread_mutex_unlock(&mapping_mutex);
    return 0;
}

int cuMemGetAddressRange(uintptr_t *base, size_t *size, uintptr_t address) {
    ENTER(NEEDS_CONTEXT);
    const struct block *block = find_block((void *)address);
    if (block == NULL) return INVALID;
    if (base) *base = (uintptr_t)block->start;
    if (size) *size = block->size;
    return 0;
}

STAND_IN(cuMemExportToShareableHandle, NOT_SUPPORTED)
STAND_IN(cuMemImportFromShareableHandle, NOT_SUPPORTED)
STAND_IN(cuMemRetainAllocationHandle, NOT_SUPPORTED)
STAND_IN(cuMemGetAllocationPropertiesFromHandle, NOT_SUPPORTED)
STAND_IN(cuMemsetD32Async, 0)
STAND_IN(cuStreamWriteValue32, 0)
STAND_IN(cuCtxFromGreenCtx, NOT_SUPPORTED)
STAND_IN(cuCtxPopCurrent, 0)
STAND_IN(cuCtxPushCurrent, 0)
STAND_IN(cuGreenCtxCreate, NOT_SUPPORTED)
STAND_IN(cuGreenCtxDestroy, NOT_SUPPORTED)
STAND_IN(cuGreenCtxStreamCreate, NOT_SUPPORTED)
STAND_IN(cuDevSmResourceSplitByCount, NOT_SUPPORTED)
STAND_IN(cuDeviceGetDevResource, NOT_SUPPORTED)
STAND_IN(cuDevResourceGenerateDesc, NOT_SUPPORTED)
STAND_IN(cuMulticastAddDevice, NOT_SUPPORTED)
STAND_IN(cuMulticastBindMem, NOT_SUPPORTED)
STAND_IN(cuMulticastCreate, NOT_SUPPORTED)
STAND_IN(cuMulticastUnbind, NOT_SUPPORTED)

/* ---- NVML; a handle is the number of a GPU plus one ---- */

enum { NVML_INVALID = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_TOO_SMALL = 7, NVML_LOST = 15 };

#define ENTER_NVML(knob)                        \
    do {                                        \
        int code_ = enter(__func__, NVML, NULL); \
        if (code_ == 0) code_ = knob;           \
        if (code_) return code_;                \
    } while (0)

static int gpu_of(const void *handle) { return (int)(uintptr_t)handle - 1; }

static int give_handle(int gpu, void **handle) {
    if (gpu < 0 || gpu >= machine.gpu_count) return NVML_NOT_FOUND;
    if (machine.gpus[gpu].lost) return NVML_LOST;
    *handle = (void *)(uintptr_t)(gpu + 1);
    return 0;
}

static int nvml_users, nvml_node = -1;

/* Between the first nvmlInit and the last nvmlShutdown the real one holds /dev/nvidiactl open. */
int nvmlInit_v2(void) {
    ENTER_NVML(machine.nvml_init);
    if (nvml_users++ == 0) nvml_node = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    return 0;
}

int nvmlInit(void) { return nvmlInit_v2(); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return nvmlInit_v2();
}

int nvmlShutdown(void) {
    if (nvml_users == 0) return 1; /* NVML_ERROR_UNINITIALIZED */
    if (--nvml_users == 0 && nvml_node >= 0) close(nvml_node);
    return 0;
}

const char *nvmlErrorString(int code) {
    return code == 0 ? "Success" : code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_NVML(0);
    *count = (unsigned)machine.gpu_count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ENTER_NVML(machine.nvml_handle);
    return give_handle((int)index, handle);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    unsigned domain = 0, bus = 0;
    ENTER_NVML(machine.nvml_handle);
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2) return NVML_INVALID;
    for (int gpu = 0; gpu < machine.gpu_count; gpu++)
        if (machine_bus(gpu) == (int)bus) return give_handle(gpu, handle);
    return NVML_NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER_NVML(machine.nvml_handle);
    for (int gpu = 0; gpu < machine.gpu_count; gpu++)
        if (!strcmp(machine.gpus[gpu].uuid, uuid)) return give_handle(gpu, handle);
    return NVML_NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    ENTER_NVML(0);
    snprintf(text, size, "%s", machine.gpus[gpu_of(handle)].uuid);
    return 0;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    ENTER_NVML(0);
    snprintf(text, size, "%s", machine.gpus[gpu_of(handle)].name);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *total_free_used) {
    ENTER_NVML(0);
    total_free_used[0] = machine.gpus[gpu_of(handle)].memory;
    total_free_used[2] = machine_used_of_gpu(gpu_of(handle));
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return 0;
}

struct process_v1 {
    unsigned pid;
    unsigned long long bytes;
};
struct process_v2 {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

static int processes_of(const void *handle, unsigned *count, struct app *apps) {
    int found = machine_apps(gpu_of(handle), apps, 64);
    unsigned room = *count;
    *count = (unsigned)found;
    return room < (unsigned)found ? NVML_TOO_SMALL : 0;
}

int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *processes) {
    struct app apps[64];
    ENTER_NVML(machine.nvml_processes);
    int code = processes_of(handle, count, apps);
    for (unsigned i = 0; code == 0 && i < *count; i++) processes[i] = (struct process_v1){(unsigned)apps[i].pid, apps[i].bytes};
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process_v2 *processes) {
    struct app apps[64];
    ENTER_NVML(machine.nvml_processes);
    int code = processes_of(handle, count, apps);
    for (unsigned i = 0; code == 0 && i < *count; i++)
        processes[i] = (struct process_v2){(unsigned)apps[i].pid, apps[i].bytes, ~0U, ~0U};
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    extern int cudaDriverGetVersion(int *);
    ENTER_NVML(0);
    return cudaDriverGetVersion(version);
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER_NVML(0);
    snprintf(text, size, "%s", machine.driver);
    return 0;
}

#define WITHOUT(name)                    \
    int name(void) {                     \
        ENTER_NVML(NVML_NOT_SUPPORTED);  \
        return 0;                        \
    }
WITHOUT(nvmlDeviceGetNvLinkRemoteDeviceType)
WITHOUT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
WITHOUT(nvmlDeviceGetGpuFabricInfoV)
