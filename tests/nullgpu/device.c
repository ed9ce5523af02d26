/* See device.h. */
#define _GNU_SOURCE
#include "device.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, NOT_READY = 600 };

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread int last_error;
static __thread int current;

static pid_t driver_pid; /* who initialised the driver */
static int driver_code;
static long ordinal;
static int visible[MAX_UNITS], visible_total;
static bool contexts[MAX_UNITS];

static int sticky_code;
static int pending_code; /* the device has it, the host does not know yet */
static long pending_late;
static bool hung;

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }

/* A recursive mutex belongs to a thread, which the child's only one is not. */
static void after_fork_in_child(void) {
    mutex = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(before_fork, after_fork, after_fork_in_child); }

static bool launches_block(void) {
    const char *value = getenv("CUDA_LAUNCH_BLOCKING");
    return value && atoi(value) != 0;
}

/* Errors that a real device keeps until its process ends (CUDA runtime API, cudaError_t: "must be terminated"). */
static bool stays(int code) {
    switch (code) {
    case 214: case 220: case 226: case 700: case 702: case 709: case 710: case 714: case 715: case 716: case 717:
    case 718: case 719: case 720: case 721: return true;
    default: return false;
    }
}

static void trace(const char *name, const char *detail) {
    static int fd = -1;
    static pid_t pid;
    char line[1024];
    if (!machine.trace || machine_folder() == NULL) return;
    if (pid != getpid()) {
        if (fd >= 0) close(fd);
        snprintf(line, sizeof line, "%s/trace", machine_folder());
        mkdir(line, 0700);
        snprintf(line, sizeof line, "%s/trace/%d", machine_folder(), getpid());
        fd = open(line, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        pid = getpid();
    }
    int size = snprintf(line, sizeof line, "%s%s%s\n", name, detail ? " " : "", detail ? detail : "");
    if (size >= (int)sizeof line) size = sizeof line - 1, line[size - 1] = '\n';
    if (write(fd, line, (size_t)size) < 0) return;
}

/* An initialised driver keeps its device files open until the process ends; see files.c for where they are. */
static void open_node(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/dev/%s", name);
    open(path, O_RDWR | O_CLOEXEC);
}

/* CUDA_VISIBLE_DEVICES as CUDA reads it: the first entry that names no device hides all after it. */
static void find_visible(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible_total = 0;
    int whole[MAX_UNITS], count = 0; /* by index: a GPU, or its first slice where MIG is on */
    for (int gpu = 0; gpu < machine.gpu_count; gpu++) {
        int unit = gpu;
        for (int i = machine.gpu_count; i < machine.unit_count && machine.gpus[gpu].slices; i++)
            if (machine.units[i].gpu == gpu) {
                unit = i;
                break;
            }
        if (!machine.gpus[gpu].lost) whole[count++] = unit;
    }
    if (wanted == NULL) {
        for (int i = 0; i < count; i++) visible[visible_total++] = whole[i];
        return;
    }
    char words[4096], *rest = NULL;
    snprintf(words, sizeof words, "%s", wanted);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int found = -1;
        word += strspn(word, " ");
        if (*word >= '0' && *word <= '9') found = atoi(word) < count ? whole[atoi(word)] : -1;
        else if (strlen(word) > 4)
            for (int i = 0; i < machine.unit_count && found < 0; i++) {
                bool lost = machine.gpus[machine.units[i].gpu].lost, split = !machine.units[i].slice && machine.gpus[i].slices;
                if (!lost && !split && !strncasecmp(machine.units[i].uuid, word, strlen(word))) found = i;
            }
        if (found < 0) return;
        for (int i = 0; i < visible_total; i++)
            if (visible[i] == found) {
                visible_total = 0; /* a device named twice: none is visible */
                return;
            }
        visible[visible_total++] = found;
    }
}

static bool is_for_this_process(struct fault *fault) {
    if (fault->process_first && (ordinal < fault->process_first || (fault->process_last >= 0 && ordinal > fault->process_last)))
        return false;
    if (fault->unit >= 0 && (current >= visible_total || visible[current] != fault->unit)) return false;
    if (fault->argv[0]) {
        static char line[8192];
        static ssize_t size;
        if (size == 0) {
            int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
            size = read(fd, line, sizeof line - 1);
            close(fd);
            for (ssize_t i = 0; i < size; i++) line[i] = line[i] ? line[i] : ' ';
        }
        /* A worker that was forked from a template has the template's command line, and a log of its own. */
        char log[4096];
        ssize_t length = readlink("/proc/self/fd/1", log, sizeof log - 1);
        log[length > 0 ? length : 0] = 0;
        if (!strstr(line, fault->argv) && !strstr(log, fault->argv)) return false;
    }
    if (fault->with[0]) {
        char name[64];
        snprintf(name, sizeof name, "%s", fault->with);
        char *wanted = strchr(name, '=');
        if (wanted) *wanted++ = 0;
        const char *value = getenv(name);
        if (value == NULL || (wanted && strcmp(value, wanted))) return false;
    }
    return true;
}

static bool happens_at(const struct fault *fault, const char *name, int does, const char *kernel, const char *step) {
    const char *place = fault->place;
    if (step) return !strcmp(place, step);
    if (!strncmp(place, "kernel:", 7)) return kernel && strstr(kernel, place + 7);
    if (!strcmp(place, name)) return true;
    if (does & NVML) return false;
    if (!strcmp(place, "call")) return does != DOES_NOTHING;
    if (!strcmp(place, "launch")) return does & LAUNCHES;
    if (!strcmp(place, "memcpy")) return does & COPIES;
    if (!strcmp(place, "malloc")) return does & ALLOCATES;
    if (!strcmp(place, "wait")) return does & WAITS;
    return false;
}

static void sleep_ms(int milliseconds) {
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (nanosleep(&pause, &pause) != 0) continue;
}

static void hang(void) {
    pthread_mutex_unlock(&mutex);
    for (;;) pause(); /* as a call that waits for the driver does: deaf to everything but SIGKILL and fatal signals */
}

/* The fault that happens now, or NULL. `step` is init or context. */
static int meet_faults(const char *name, int does, const char *kernel, const char *step) {
    for (int i = 0; i < machine.fault_count; i++) {
        struct fault *fault = &machine.faults[i];
        if (!happens_at(fault, name, does, kernel, step) || !is_for_this_process(fault)) continue;
        fault->seen++;
        if (fault->seen < fault->first || (fault->last >= 0 && fault->seen > fault->last)) continue;
        if (!machine_may_fire(fault)) continue;
        trace("fault", fault->text);
        bool later = (does & (LAUNCHES | COPIES)) && !(does & WAITS) && !launches_block();
        switch (fault->kind) {
        case FAULT_SLOW: sleep_ms(fault->code); continue;
        case FAULT_KILL: raise(fault->code); continue;
        case FAULT_HOLD: machine_hold_until_mended(fault); return 0;
        case FAULT_HANG:
            if (!later) hang();
            hung = true;
            continue;
        case FAULT_CODE: break;
        }
        bool literal = !strcmp(fault->place, name) && (does & (BLAS | NVML));
        if (literal) return fault->code;
        bool keeps = fault->sticky < 0 ? stays(fault->code) : fault->sticky;
        if (keeps && later && stays(fault->code)) {
            if (pending_code == 0) pending_code = fault->code, pending_late = fault->late;
            continue;
        }
        if (keeps) sticky_code = fault->code;
        return fault->code;
    }
    return 0;
}

static int ensure_driver(void) {
    if (driver_pid == 0) {
        driver_pid = getpid();
        ordinal = machine_next_ordinal();
        find_visible();
        driver_code = meet_faults("cuInit", NEEDS_DRIVER, NULL, "init");
        if (driver_code == 0 && visible_total == 0) driver_code = NO_DEVICE;
        if (driver_code == 0) open_node("nvidiactl");
    }
    return driver_pid == getpid() ? driver_code : NOT_INITIALIZED; /* no driver survives a fork */
}

static int begin_context(void) {
    if (current >= visible_total) return BAD_DEVICE;
    if (contexts[current]) return 0;
    int code = meet_faults("context", NEEDS_CONTEXT, NULL, "context");
    if (code == 0) code = machine_begin_context(visible[current]);
    if (code == 0) {
        char node[32];
        snprintf(node, sizeof node, "nvidia%d", machine.units[visible[current]].gpu);
        open_node(node);
        contexts[current] = true;
    }
    return code;
}

/* What the device has done wrong by now, where the call can notice. */
static int notice(int does) {
    if (hung && (does & POLLS)) return NOT_READY;
    if (hung && (does & WAITS)) hang();
    if (pending_code != 0 && (does & (WAITS | POLLS)) && pending_late-- <= 0) {
        sticky_code = pending_code;
        pending_code = 0;
    }
    return 0;
}

static int enter_locked(const char *name, int does, const char *kernel) {
    machine_refresh();
    if (does != DOES_NOTHING) trace(name, kernel);
    if (does & NVML) {
        if (ordinal == 0) ordinal = machine_next_ordinal();
        return meet_faults(name, does, kernel, NULL);
    }
    int code = 0;
    if ((does & (NEEDS_DRIVER | NEEDS_CONTEXT)) && (code = ensure_driver()) != 0) return code;
    if ((does & NEEDS_CONTEXT) && sticky_code) return sticky_code;
    if ((does & NEEDS_CONTEXT) && (code = begin_context()) != 0) return code;
    if (does & NEEDS_CONTEXT) {
        int lost = machine.gpus[machine.units[visible[current]].gpu].lost;
        if (lost) return sticky_code = lost;
    }
    if ((code = notice(does)) != 0) return code;
    if ((does & NEEDS_CONTEXT) && sticky_code) return sticky_code;
    return meet_faults(name, does, kernel, NULL);
}

int enter(const char *name, int does, const char *kernel) {
    pthread_mutex_lock(&mutex);
    int code = enter_locked(name, does, kernel);
    bool literal = false;
    if (code != 0 && (does & BLAS) && code != sticky_code)
        for (int i = 0; i < machine.fault_count; i++)
            literal = literal || (!strcmp(machine.faults[i].place, name) && machine.faults[i].code == code);
    pthread_mutex_unlock(&mutex);
    if (code == 0 || (does & NVML)) return code;
    if (does & BLAS) return literal ? code : code == NO_MEMORY ? 3 : 13; /* CUBLAS_STATUS_ALLOC_FAILED, EXECUTION_FAILED */
    return code == NOT_READY ? code : fail(code);
}

int fail(int code) { return last_error = code; }

int take_last_error(bool keep) {
    if (sticky_code) return sticky_code;
    int code = last_error;
    if (!keep) last_error = 0;
    return code;
}

int ensure_context(void) { return enter("context", NEEDS_CONTEXT, NULL); }

bool has_context(int device) {
    return device >= 0 && device < visible_total && driver_pid == getpid() && contexts[device];
}

int current_device(void) { return current; }

int set_current_device(int device) {
    pthread_mutex_lock(&mutex);
    int code = ensure_driver();
    pthread_mutex_unlock(&mutex);
    if (code == 0 && (device < 0 || device >= visible_total)) code = BAD_DEVICE;
    if (code) return fail(code);
    current = device;
    return 0;
}

int visible_count(void) { return visible_total; }
int visible_index(int device) { return visible[device]; }
const struct unit *visible_unit(int device) { return &machine.units[visible[device]]; }

static struct block *blocks;
static size_t block_count, block_room;

void add_block(void *start, size_t size, enum block_kind kind, int device) {
    pthread_mutex_lock(&mutex);
    if (block_count == block_room) blocks = realloc(blocks, (block_room = block_room * 2 + 64) * sizeof *blocks);
    blocks[block_count++] = (struct block){start, size, kind, device};
    pthread_mutex_unlock(&mutex);
}

bool remove_block(void *start, struct block *removed) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = block_count; i-- > 0 && !found;)
        if (blocks[i].start == start) {
            *removed = blocks[i];
            blocks[i] = blocks[--block_count];
            found = true;
        }
    pthread_mutex_unlock(&mutex);
    return found;
}

const struct block *find_block(const void *address) {
    const char *wanted = address;
    pthread_mutex_lock(&mutex);
    const struct block *found = NULL;
    for (size_t i = block_count; i-- > 0 && !found;)
        if (wanted >= blocks[i].start && wanted < blocks[i].start + blocks[i].size) found = &blocks[i];
    pthread_mutex_unlock(&mutex);
    return found;
}

int device_malloc(void **out, size_t size) {
    size_t whole = (size + 511) & ~(size_t)511;
    *out = NULL;
    if (size == 0) return 0;
    if (machine_hold(visible[current], (int64_t)whole) != 0) return fail(NO_MEMORY);
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        machine_hold(visible[current], -(int64_t)whole);
        return fail(NO_MEMORY);
    }
    add_block(memory, whole, BLOCK_DEVICE, current);
    *out = memory;
    return 0;
}

int device_free(void *pointer) {
    struct block block;
    if (pointer == NULL) return 0;
    if (!remove_block(pointer, &block)) return fail(1);
    munmap(block.start, block.size);
    machine_hold(visible[block.device], -(int64_t)block.size);
    return 0;
}

int stub(const char *name, int does, int answer) {
    int code = enter(name, does, NULL);
    return code ? code : answer ? fail(answer) : 0;
}
