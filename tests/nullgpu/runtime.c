/* Stands in for libcudart over host memory; kernels do nothing, but for the two that a product of ones needs. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

#define ENTER(does)                              \
    do {                                         \
        int code_ = enter(__func__, does, NULL); \
        if (code_) return (cudaError_t)code_;    \
    } while (0)

/* ---- kernels by name ---- */

struct kernel {
    const void *function;
    const char *name;
};
static struct kernel *kernels;
static size_t kernel_count, kernel_room, kernels_sorted;
static pthread_mutex_t kernel_mutex = PTHREAD_MUTEX_INITIALIZER;

void __cudaRegisterFunction(void **module, const char *function, char *device_function, const char *name, int threads,
                            void *tid, void *bid, dim3 *block, dim3 *grid, int *warp) {
    (void)module, (void)device_function, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    pthread_mutex_lock(&kernel_mutex);
    if (kernel_count == kernel_room) kernels = realloc(kernels, (kernel_room = kernel_room * 2 + 4096) * sizeof *kernels);
    kernels[kernel_count++] = (struct kernel){function, name};
    pthread_mutex_unlock(&kernel_mutex);
}

static int by_function(const void *a, const void *b) {
    const struct kernel *one = a, *other = b;
    return one->function < other->function ? -1 : one->function > other->function;
}

static const char *name_of(const void *function) {
    pthread_mutex_lock(&kernel_mutex);
    if (kernels_sorted != kernel_count) {
        qsort(kernels, kernel_count, sizeof *kernels, by_function);
        kernels_sorted = kernel_count;
    }
    struct kernel wanted = {function, NULL};
    const struct kernel *found = bsearch(&wanted, kernels, kernel_count, sizeof *kernels, by_function);
    pthread_mutex_unlock(&kernel_mutex);
    return found ? found->name : "?";
}

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) { (void)module; }
void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int external, size_t size, int constant,
                       int global) {
    (void)module, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}
char __cudaInitModule(void **module) {
    (void)module;
    return 1;
}

/* ---- launches ---- */

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    configuration.grid = grid, configuration.block = block, configuration.shared = shared, configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
    *(void **)stream = configuration.stream;
    return cudaSuccess;
}

static bool is_on_device(const void *start, size_t size) {
    const struct block *block = find_block(start);
    return block && block->kind == BLOCK_DEVICE && (const char *)start + size <= block->start + block->size;
}

/* at::native::vectorized_elementwise_kernel<…, FillFunctor<float>, array<char*, 1>>(int, FillFunctor, array) */
static void fill(void **args) {
    int count = *(int *)args[0];
    float value = *(float *)args[1], *to = *(float **)args[2];
    if (count > 0 && count <= 1 << 16 && is_on_device(to, (size_t)count * sizeof *to))
        for (int i = 0; i < count; i++) to[i] = value;
}

/* at::native::reduce_kernel<…, ReduceOp<float, sum, …>>(ReduceOp): begins with the functor, the identity and the
 * ReduceConfig {element size, inputs, outputs, …}; the first two pointers to device memory that stand side by side in it
 * are source and destination (ATen/native/cuda/Reduce.cuh). One may stand alone before them: arrays in it are not filled
 * to their end, and what was in memory is still there. Only for a sum of everything into one number. */
static void sum(void **args) {
    const int *words = args[0];
    for (int at = 2; at < 8; at++)
        if (words[at] == (int)sizeof(float) && words[at + 1] > 0 && words[at + 1] <= 1 << 16 && words[at + 2] == 1) {
            int count = words[at + 1], i = 0;
            float **pointers = args[0];
            size_t size = (size_t)count * sizeof(float);
            while (i < 200 && !(is_on_device(pointers[i], size) && is_on_device(pointers[i + 1], sizeof(float)))) i++;
            if (i == 200) return;
            double total = 0;
            for (int j = 0; j < count; j++) total += pointers[i][j];
            *pointers[i + 1] = (float)total;
            return;
        }
}

static unsigned long launches; /* tells whether memory can have changed since a copy */

static cudaError_t launch(const char *function_name, const void *function, void **args) {
    const char *kernel = name_of(function);
    int code = enter(function_name, NEEDS_CONTEXT | LAUNCHES, kernel);
    if (code) return (cudaError_t)code;
    launches++;
    if (strstr(kernel, "FillFunctorIfE") && strstr(kernel, "vectorized_elementwise")) fill(args);
    else if (strstr(kernel, "13reduce_kernel") && strstr(kernel, "sum_functorIfff")) sum(args);
    return cudaSuccess;
}

void note_launch(void) { launches++; }

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return launch("cudaLaunchKernel", function, args);
}

cudaError_t __cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return launch("cudaLaunchKernel", function, args);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t stream) {
    (void)grid, (void)block, (void)shared, (void)stream;
    return launch("cudaLaunchCooperativeKernel", function, args);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args) {
    (void)config;
    return launch("cudaLaunchKernelExC", function, args);
}

cudaError_t __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    function(data);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
    (void)flags;
    ENTER(NEEDS_CONTEXT);
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    ENTER(NEEDS_CONTEXT);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = machine.capability;
    attributes->maxDynamicSharedSizeBytes = 160 << 10;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared) {
    (void)function, (void)size, (void)shared;
    ENTER(NEEDS_CONTEXT);
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                   size_t shared, unsigned flags) {
    (void)function, (void)size, (void)shared, (void)flags;
    ENTER(NEEDS_CONTEXT);
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    static char place[1 << 16];
    (void)symbol;
    ENTER(NEEDS_CONTEXT);
    *pointer = place;
    return cudaSuccess;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    ENTER(NEEDS_DRIVER);
    *count = visible_count();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    ENTER(NEEDS_DRIVER);
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    int before = current_device(), code = set_current_device(device);
    if (code == 0) code = enter(__func__, NEEDS_CONTEXT, NULL);
    if (code) set_current_device(before);
    return (cudaError_t)code;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    ENTER(NEEDS_DRIVER);
    if (device < 0 || device >= visible_count()) return (cudaError_t)fail(cudaErrorInvalidDevice);
    const struct unit *unit = visible_unit(device);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", unit->name);
    const char *sign = strchr(unit->uuid, '-') ? strchr(unit->uuid, '-') + 1 : unit->uuid;
    for (int i = 0; i < 16 && *sign; sign++)
        if (*sign != '-' && sign[1]) {
            unsigned value = 0;
            sscanf(sign, "%2x", &value);
            prop->uuid.bytes[i++] = (char)value;
            sign++;
        }
    prop->totalGlobalMem = unit->memory;
    prop->major = machine.capability / 10, prop->minor = machine.capability % 10;
    prop->multiProcessorCount = 108;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024, prop->maxThreadsPerMultiProcessor = 2048;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024, prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 0x7fffffff, prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->sharedMemPerBlock = 48 << 10, prop->sharedMemPerBlockOptin = 163 << 10, prop->sharedMemPerMultiprocessor = 164 << 10;
    prop->reservedSharedMemPerBlock = 1 << 10;
    prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
    prop->totalConstMem = 64 << 10;
    prop->memPitch = 0x7fffffff;
    prop->l2CacheSize = 40 << 20, prop->memoryBusWidth = 5120;
    prop->textureAlignment = 512, prop->texturePitchAlignment = 32;
    prop->concurrentKernels = prop->unifiedAddressing = prop->canMapHostMemory = prop->cooperativeLaunch = 1;
    prop->asyncEngineCount = 3, prop->streamPrioritiesSupported = 1, prop->maxBlocksPerMultiProcessor = 32;
    prop->pciBusID = machine_bus(unit->gpu);
    prop->memoryPoolsSupported = prop->managedMemory = prop->hostRegisterSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp prop;
    cudaError_t code = cudaGetDeviceProperties(&prop, device);
    if (code) return code;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = prop.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = prop.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = prop.minor; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = prop.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = prop.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)prop.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)prop.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)prop.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = prop.regsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = prop.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = prop.maxGridSize[1]; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    ENTER(NEEDS_DRIVER);
    if (device < 0 || device >= visible_count()) return (cudaError_t)fail(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:%02X:00.0", machine_bus(visible_unit(device)->gpu));
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device, (void)peer;
    ENTER(NEEDS_DRIVER);
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(NEEDS_CONTEXT);
    *least = 0, *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER(NEEDS_CONTEXT | WAITS);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    machine_refresh();
    int major = 13, minor = 0;
    sscanf(machine.cuda, "%d.%d", &major, &minor);
    *version = major * 1000 + minor * 10;
    ENTER(DOES_NOTHING);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return (cudaError_t)take_last_error(false); }
cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)take_last_error(true); }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    (void)version, (void)flags;
    *function = dlsym(RTLD_DEFAULT, symbol);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **pointer, size_t size) {
    ENTER(NEEDS_CONTEXT | ALLOCATES);
    return (cudaError_t)device_malloc(pointer, size);
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) {
    (void)stream;
    ENTER(NEEDS_CONTEXT | ALLOCATES);
    return (cudaError_t)device_malloc(pointer, size);
}

cudaError_t cudaFree(void *pointer) {
    ENTER(NEEDS_CONTEXT | WAITS);
    return (cudaError_t)device_free(pointer);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    return (cudaError_t)device_free(pointer);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER(NEEDS_CONTEXT);
    uint64_t used = machine_used(visible_index(current_device()));
    *total = visible_unit(current_device())->memory;
    *free_bytes = used < *total ? *total - used : 0;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    (void)flags;
    ENTER(NEEDS_CONTEXT);
    *pointer = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*pointer == MAP_FAILED) return (cudaError_t)fail(cudaErrorMemoryAllocation);
    add_block(*pointer, size ? size : 1, BLOCK_PINNED, current_device());
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer) {
    struct block block;
    ENTER(NEEDS_CONTEXT | WAITS);
    if (pointer == NULL) return cudaSuccess;
    if (!remove_block(pointer, &block)) return (cudaError_t)fail(cudaErrorInvalidValue);
    munmap(block.start, block.size);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    (void)flags;
    ENTER(NEEDS_CONTEXT);
    add_block(pointer, size, BLOCK_REGISTERED, current_device());
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
    struct block block;
    ENTER(NEEDS_CONTEXT);
    return remove_block(pointer, &block) ? cudaSuccess : (cudaError_t)fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    ENTER(NEEDS_DRIVER);
    const struct block *block = find_block(pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = block == NULL ? cudaMemoryTypeUnregistered : block->kind == BLOCK_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = block ? block->device : -2;
    attributes->devicePointer = block ? (void *)pointer : NULL;
    attributes->hostPointer = block && block->kind == BLOCK_DEVICE ? NULL : (void *)pointer;
    return cudaSuccess;
}

/* Ranges of device memory that were copied into and that no kernel can have changed since. */
static struct {
    const char *start;
    size_t size;
    unsigned long launches;
} copied[16];
static unsigned copied_next;

static bool is_as_copied(const void *start, size_t size) {
    for (int i = 0; i < 16; i++)
        if (copied[i].launches == launches && (const char *)start >= copied[i].start &&
            (const char *)start + size <= copied[i].start + copied[i].size)
            return true;
    return false;
}

/* Noise that is finite and not zero as float16, bfloat16, float32 and float64, and the same in every row of a batch. */
static void fill_with_noise(char *to, size_t size) {
    for (size_t i = 0; i < size; i++) to[i] = (char)(i & 1 ? 0x3c : (i / 2 * 37 + 11) & 0x7f);
    for (size_t i = 64; i + 64 <= size; i += 64) memcpy(to + i, to, 64);
}

/* A copy that goes on where another one ended is one with it. */
static void note_copied(const char *start, size_t size) {
    for (int i = 0; i < 16; i++)
        if (copied[i].size && copied[i].launches == launches && copied[i].start + copied[i].size == start) {
            copied[i].size += size;
            return;
        }
    unsigned next = copied_next++ % 16;
    copied[next].start = start, copied[next].size = size, copied[next].launches = launches;
}

static void copy_bytes(void *to, const void *from, size_t size) {
    bool from_device = find_block(from) && find_block(from)->kind == BLOCK_DEVICE;
    bool to_device = find_block(to) && find_block(to)->kind == BLOCK_DEVICE;
    if (from_device && !to_device && size == 1) *(char *)to = (char)machine.boolean;
    else if (from_device && !to_device && size >= 16 && !is_as_copied(from, size)) fill_with_noise(to, size);
    else if (size <= machine.copy_limit_bytes) memmove(to, from, size);
    if (to_device && (!from_device || is_as_copied(from, size))) note_copied(to, size);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    (void)kind;
    ENTER(NEEDS_CONTEXT | COPIES | WAITS);
    copy_bytes(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    ENTER(NEEDS_CONTEXT | COPIES);
    copy_bytes(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream) {
    (void)to_device, (void)from_device, (void)stream;
    ENTER(NEEDS_CONTEXT | COPIES);
    copy_bytes(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    ENTER(NEEDS_CONTEXT | COPIES);
    for (size_t row = 0; row < height; row++)
        copy_bytes((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *pointer, int value, size_t size) {
    ENTER(NEEDS_CONTEXT);
    if (size <= machine.copy_limit_bytes) memset(pointer, value, size);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    if (size <= machine.copy_limit_bytes) memset(pointer, value, size);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    static char pools[MAX_UNITS];
    ENTER(NEEDS_CONTEXT);
    *pool = (cudaMemPool_t)&pools[device];
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool, (void)attribute;
    ENTER(NEEDS_CONTEXT);
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

/* ---- streams and events ---- */

static cudaError_t make_handle(const char *name, void **handle) {
    int code = enter(name, NEEDS_CONTEXT, NULL);
    if (code == 0) *handle = calloc(1, 64);
    return (cudaError_t)code;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return make_handle(__func__, (void **)stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return make_handle(__func__, (void **)stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    return make_handle(__func__, (void **)stream);
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return make_handle(__func__, (void **)event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    return make_handle(__func__, (void **)event);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER(NEEDS_CONTEXT);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER(NEEDS_CONTEXT);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    ENTER(NEEDS_CONTEXT | WAITS);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    (void)event;
    ENTER(NEEDS_CONTEXT | WAITS);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    ENTER(NEEDS_CONTEXT | POLLS);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    (void)event;
    ENTER(NEEDS_CONTEXT | POLLS);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    (void)start, (void)end;
    ENTER(NEEDS_CONTEXT);
    *milliseconds = 1;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    (void)stream;
    ENTER(NEEDS_CONTEXT);
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (graph) *graph = NULL;
    if (nodes) *nodes = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    (void)mode;
    return cudaSuccess;
}
