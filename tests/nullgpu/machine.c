/* See machine.h.
 *
 * $NULLGPU_DIR/control   what the machine is: lines of key=value, `#` begins a comment (README.md lists the keys)
 * $NULLGPU_DIR/state     what processes hold, mapped by all of them, under a lock of fcntl(2)
 * $NULLGPU_CONTROL       another control file; $NULLGPU_SET  lines before the file's, joined by semicolons
 */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x6e756c6c67707531ULL

struct holding {
    pid_t pid; /* 0 = free */
    unsigned long long started; /* clock ticks since boot: tells a pid used again */
    int unit;
    uint64_t bytes;
    uint64_t died_ns; /* first seen dead; 0 = alive */
    char name[128];
};

struct fired {
    uint64_t key;
    long count;
};

struct shared {
    uint64_t magic;
    long ordinals;
    struct holding holdings[MAX_HOLDINGS];
    struct fired fired[MAX_FAULTS];
};

struct machine machine;
static struct shared *shared;
static int shared_fd = -1;

const char *machine_folder(void) { return getenv("NULLGPU_DIR"); }

int machine_bus(int gpu) { return 0x1a + gpu; }

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static uint64_t bytes_of(const char *text) {
    char *end;
    double number = strtod(text, &end);
    switch (*end) {
    case 'K': return (uint64_t)(number * 1024);
    case 'M': return (uint64_t)(number * (1 << 20));
    case 'G': return (uint64_t)(number * (1 << 30));
    default: return (uint64_t)number;
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static void complain(const char *what, const char *text) {
    fprintf(stderr, "nullgpu: %s: %s\n", what, text);
    fflush(stderr);
    _exit(70);
}

/* "3", "3+", "3-5"; first = last = 0 for nothing. */
static void range_of(const char *text, long *first, long *last) {
    char *end;
    *first = strtol(text, &end, 10);
    *last = *end == '+' ? -1 : *end == '-' ? strtol(end + 1, NULL, 10) : *first;
}

/* CODE@PLACE[:N][,key[=value]]…, e.g. 700@launch:35,process=2,sticky */
static void parse_fault(const char *text) {
    if (machine.fault_count == MAX_FAULTS) complain("too many faults", text);
    struct fault *fault = &machine.faults[machine.fault_count++];
    *fault = (struct fault){.first = 1, .last = -1, .unit = -1, .sticky = -1};
    copy(fault->text, sizeof fault->text, text);
    char words[256], *rest = NULL;
    copy(words, sizeof words, text);
    char *head = strtok_r(words, ",", &rest);
    char *place = head ? strchr(head, '@') : NULL;
    if (place == NULL) complain("a fault is CODE@PLACE[:N],…", text);
    *place++ = 0;
    if (!strcmp(head, "hang")) fault->kind = FAULT_HANG;
    else if (!strcmp(head, "hold")) fault->kind = FAULT_HOLD;
    else if (!strncmp(head, "kill", 4)) fault->kind = FAULT_KILL, fault->code = head[4] == ':' ? atoi(head + 5) : 9;
    else if (!strncmp(head, "slow:", 5)) fault->kind = FAULT_SLOW, fault->code = (int)(atof(head + 5) * 1000);
    else fault->kind = FAULT_CODE, fault->code = atoi(head);
    char *count = strrchr(place, ':');
    if (count && count[1] >= '0' && count[1] <= '9') {
        *count = 0;
        range_of(count + 1, &fault->first, &fault->last);
    }
    copy(fault->place, sizeof fault->place, place);
    for (char *word; (word = strtok_r(NULL, ",", &rest));) {
        char *value = strchr(word, '=');
        if (value) *value++ = 0;
        if (!strcmp(word, "sticky")) fault->sticky = 1;
        else if (!strcmp(word, "plain")) fault->sticky = 0;
        else if (!strcmp(word, "once")) fault->times = 1;
        else if (value == NULL) complain("no such word in a fault", text);
        else if (!strcmp(word, "process")) range_of(value, &fault->process_first, &fault->process_last);
        else if (!strcmp(word, "gpu")) fault->unit = atoi(value);
        else if (!strcmp(word, "late")) fault->late = atol(value);
        else if (!strcmp(word, "times")) fault->times = atol(value);
        else if (!strcmp(word, "argv")) copy(fault->argv, sizeof fault->argv, value);
        else if (!strcmp(word, "with")) copy(fault->with, sizeof fault->with, value);
        else complain("no such word in a fault", text);
    }
}

/* GPU:BYTES[:PID[:NAME]] */
static void parse_neighbour(const char *text) {
    if (machine.neighbour_count == MAX_NEIGHBOURS) complain("too many neighbours", text);
    struct neighbour *it = &machine.neighbours[machine.neighbour_count++];
    char words[256], *rest = NULL;
    copy(words, sizeof words, text);
    const char *gpu = strtok_r(words, ":", &rest), *bytes = strtok_r(NULL, ":", &rest);
    const char *pid = strtok_r(NULL, ":", &rest), *name = strtok_r(NULL, ":", &rest);
    if (gpu == NULL || bytes == NULL) complain("a neighbour is GPU:BYTES[:PID[:NAME]]", text);
    it->gpu = atoi(gpu);
    it->bytes = bytes_of(bytes);
    it->pid = pid ? atol(pid) : 999999;
    copy(it->name, sizeof it->name, name ? name : "python3");
}

static bool set_of_gpu(const char *key, int from, int to, const char *value) {
    for (int i = from; i < to; i++) {
        struct gpu *gpu = &machine.gpus[i];
        if (!strcmp(key, "memory")) gpu->memory = bytes_of(value);
        else if (!strcmp(key, "name")) copy(gpu->name, sizeof gpu->name, value);
        else if (!strcmp(key, "uuid")) copy(gpu->uuid, sizeof gpu->uuid, value);
        else if (!strcmp(key, "mode")) copy(gpu->mode, sizeof gpu->mode, value);
        else if (!strcmp(key, "mig")) gpu->slices = atoi(value);
        else if (!strcmp(key, "lost")) gpu->lost = atoi(value) == 1 ? 999 : atoi(value);
        else if (!strcmp(key, "recovery")) copy(gpu->recovery, sizeof gpu->recovery, value);
        else if (!strcmp(key, "ecc")) gpu->ecc = atoi(value);
        else if (!strcmp(key, "remap")) copy(gpu->remap, sizeof gpu->remap, value);
        else return false;
    }
    return true;
}

static void set(char *key, const char *value) {
    char *dot = strchr(key, '.');
    if (!strcmp(key, "gpus")) machine.gpu_count = atoi(value) < MAX_GPUS ? atoi(value) : MAX_GPUS;
    else if (!strcmp(key, "neighbour")) parse_neighbour(value);
    else if (!strcmp(key, "fault")) parse_fault(value);
    else if (!strcmp(key, "context")) machine.context_bytes = bytes_of(value);
    else if (!strcmp(key, "copy_limit")) machine.copy_limit_bytes = bytes_of(value);
    else if (!strcmp(key, "giveback_s")) machine.giveback_s = atof(value);
    else if (!strcmp(key, "nvml.init")) machine.nvml_init = atoi(value);
    else if (!strcmp(key, "nvml.handle")) machine.nvml_handle = atoi(value);
    else if (!strcmp(key, "nvml.processes")) machine.nvml_processes = atoi(value);
    else if (!strcmp(key, "capability")) machine.capability = (int)(atof(value) * 10 + 0.5);
    else if (!strcmp(key, "bool")) machine.boolean = atoi(value);
    else if (!strcmp(key, "trace")) machine.trace = atoi(value) != 0;
    else if (!strcmp(key, "smi")) copy(machine.smi, sizeof machine.smi, value);
    else if (!strcmp(key, "apps")) copy(machine.apps, sizeof machine.apps, value);
    else if (!strcmp(key, "driver")) copy(machine.driver, sizeof machine.driver, value);
    else if (!strcmp(key, "cuda")) copy(machine.cuda, sizeof machine.cuda, value);
    else if (dot && dot[1] >= '0' && dot[1] <= '9') {
        int number = atoi(dot + 1);
        *dot = 0;
        if (number >= MAX_GPUS || !set_of_gpu(key, number, number + 1, value)) complain("no such key", key);
    } else if (!set_of_gpu(key, 0, MAX_GPUS, value)) complain("no such key", key);
}

static void set_lines(char *text, const char *separators) {
    char *rest = NULL;
    for (char *line = strtok_r(text, separators, &rest); line; line = strtok_r(NULL, separators, &rest)) {
        line += strspn(line, " \t");
        char *value = strchr(line, '=');
        if (*line == '#' || *line == 0) continue;
        if (value == NULL) complain("the control file has a line without `=`", line);
        *value++ = 0;
        set(line, value);
    }
}

static void make_units(void) {
    machine.unit_count = machine.gpu_count;
    for (int i = 0; i < machine.gpu_count; i++) {
        struct gpu *gpu = &machine.gpus[i];
        struct unit *unit = &machine.units[i];
        *unit = (struct unit){.memory = gpu->memory, .gpu = i};
        memcpy(unit->uuid, gpu->uuid, sizeof unit->uuid);
        memcpy(unit->name, gpu->name, sizeof unit->name);
        for (int slice = 0; slice < gpu->slices && machine.unit_count < MAX_UNITS; slice++) {
            struct unit *part = &machine.units[machine.unit_count++];
            *part = (struct unit){.memory = gpu->memory / gpu->slices, .gpu = i, .slice = true};
            snprintf(part->uuid, sizeof part->uuid, "MIG-5e%02x%02x00-0b5e-5c1a-9d00-0000000000%02x", i, slice, slice);
            snprintf(part->name, sizeof part->name, "%.40s MIG 1g.%dgb", gpu->name, (int)(part->memory >> 30));
        }
    }
}

static void load(const char *path) {
    static struct fault before[MAX_FAULTS];
    int count_before = machine.fault_count;
    memcpy(before, machine.faults, sizeof before);
    memset(&machine, 0, sizeof machine);
    machine.gpu_count = 1;
    machine.context_bytes = 256 << 20;
    machine.copy_limit_bytes = 64 << 20;
    machine.capability = 80;
    copy(machine.apps, sizeof machine.apps, "all");
    copy(machine.driver, sizeof machine.driver, "580.95.05");
    copy(machine.cuda, sizeof machine.cuda, "13.0");
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *gpu = &machine.gpus[i];
        gpu->memory = 8ULL << 30;
        copy(gpu->name, sizeof gpu->name, "Null GPU");
        copy(gpu->mode, sizeof gpu->mode, "default");
        copy(gpu->recovery, sizeof gpu->recovery, "None");
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%x1f00000-0b5e-4c1a-9d00-0000000000%02x", i, i);
    }
    const char *first = getenv("NULLGPU_SET");
    if (first) {
        char *text = strdup(first);
        set_lines(text, ";\n");
        free(text);
    }
    FILE *file = path[0] ? fopen(path, "re") : NULL;
    if (file) {
        static char text[65536];
        size_t size = fread(text, 1, sizeof text - 1, file);
        text[size] = 0;
        fclose(file);
        set_lines(text, "\n");
    }
    make_units();
    for (int i = 0; i < machine.fault_count; i++)
        for (int k = 0; k < count_before; k++)
            if (!strcmp(machine.faults[i].text, before[k].text)) machine.faults[i].seen = before[k].seen;
}

void machine_refresh(void) {
    static char path[4096];
    static struct stat known;
    static bool loaded;
    struct stat found = {0};
    if (!loaded) {
        const char *control = getenv("NULLGPU_CONTROL"), *folder = machine_folder();
        if (control) copy(path, sizeof path, control);
        else if (folder) snprintf(path, sizeof path, "%s/control", folder);
    }
    if (path[0] && stat(path, &found) != 0) found = (struct stat){0};
    if (loaded && found.st_ino == known.st_ino && found.st_size == known.st_size &&
        found.st_mtim.tv_sec == known.st_mtim.tv_sec && found.st_mtim.tv_nsec == known.st_mtim.tv_nsec)
        return;
    known = found;
    loaded = true;
    load(path);
}

static void attach(void) {
    if (shared) return;
    const char *folder = machine_folder();
    if (folder == NULL) { /* a machine of this process alone */
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/state", folder);
    shared_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (shared_fd < 0 || ftruncate(shared_fd, sizeof *shared) != 0) complain(strerror(errno), path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    if (shared == MAP_FAILED) complain(strerror(errno), path);
    if (shared->magic != 0 && shared->magic != MAGIC) complain("no state of a null GPU", path);
    shared->magic = MAGIC;
}

/* Between processes; threads are kept apart by the caller. */
static void lock(int kind) {
    attach();
    struct flock whole = {.l_type = (short)kind, .l_whence = SEEK_SET};
    while (shared_fd >= 0 && fcntl(shared_fd, F_SETLKW, &whole) != 0 && errno == EINTR) continue;
}

/* When the process began, in clock ticks since boot (proc(5), field 22 of stat); 0 = it is not alive. */
static unsigned long long started(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = 0;
    char *rest = strrchr(text, ')');
    if (rest == NULL || rest[2] == 'Z' || rest[2] == 'X') return 0;
    unsigned long long ticks = 0;
    sscanf(rest + 2, "%*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &ticks);
    return ticks;
}

static void drop_the_dead(void) {
    for (struct holding *it = shared->holdings; it < shared->holdings + MAX_HOLDINGS; it++) {
        if (it->pid == 0) continue;
        if (it->died_ns == 0 && started(it->pid) != it->started) it->died_ns = now_ns();
        if (it->died_ns != 0 && now_ns() - it->died_ns >= (uint64_t)(machine.giveback_s * 1e9)) it->pid = 0;
    }
}

static struct holding *own(int unit) {
    for (struct holding *it = shared->holdings; it < shared->holdings + MAX_HOLDINGS; it++)
        if (it->pid == getpid() && it->unit == unit && it->died_ns == 0) return it;
    return NULL;
}

static uint64_t used(int unit) {
    uint64_t sum = 0;
    drop_the_dead();
    for (struct holding *it = shared->holdings; it < shared->holdings + MAX_HOLDINGS; it++)
        if (it->pid != 0 && it->unit == unit) sum += it->bytes;
    for (int i = 0; i < machine.neighbour_count; i++)
        if (machine.neighbours[i].gpu == unit) sum += machine.neighbours[i].bytes;
    return sum;
}

uint64_t machine_used(int unit) {
    lock(F_WRLCK);
    uint64_t sum = used(unit);
    lock(F_UNLCK);
    return sum;
}

uint64_t machine_used_of_gpu(int gpu) {
    uint64_t sum = 0;
    for (int unit = 0; unit < machine.unit_count; unit++)
        if (machine.units[unit].gpu == gpu) sum += machine_used(unit);
    return sum;
}

int machine_hold(int unit, int64_t bytes) {
    lock(F_WRLCK);
    struct holding *mine = own(unit);
    int code = 0;
    if (bytes > 0 && used(unit) + (uint64_t)bytes > machine.units[unit].memory) code = 2;
    else if (mine) mine->bytes += (uint64_t)bytes;
    lock(F_UNLCK);
    return code;
}

int machine_begin_context(int unit) {
    lock(F_WRLCK);
    const char *mode = machine.gpus[machine.units[unit].gpu].mode;
    bool others = false;
    int code = 0;
    uint64_t in_use = used(unit);
    struct holding *free_place = NULL;
    for (struct holding *it = shared->holdings; it < shared->holdings + MAX_HOLDINGS; it++) {
        if (it->pid == 0) free_place = free_place ? free_place : it;
        else if (it->unit == unit) others = true;
    }
    for (int i = 0; i < machine.neighbour_count; i++) others = others || machine.neighbours[i].gpu == unit;
    if (!strcmp(mode, "prohibited") || (!strcmp(mode, "exclusive") && others)) code = 46;
    else if (in_use + machine.context_bytes > machine.units[unit].memory) code = 2;
    else if (free_place == NULL) code = 46;
    else {
        *free_place = (struct holding){
            .pid = getpid(), .started = started(getpid()), .unit = unit, .bytes = machine.context_bytes};
        ssize_t size = readlink("/proc/self/exe", free_place->name, sizeof free_place->name - 1);
        free_place->name[size > 0 ? size : 0] = 0;
    }
    lock(F_UNLCK);
    return code;
}

long machine_next_ordinal(void) {
    lock(F_WRLCK);
    long ordinal = ++shared->ordinals;
    lock(F_UNLCK);
    return ordinal;
}

bool machine_may_fire(const struct fault *fault) {
    if (fault->times == 0) return true;
    uint64_t key = 14695981039346656037ULL; /* FNV-1a */
    for (const char *sign = fault->text; *sign; sign++) key = (key ^ (unsigned char)*sign) * 1099511628211ULL;
    bool may = false;
    lock(F_WRLCK);
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fired *it = &shared->fired[i];
        if (it->count != 0 && it->key != key) continue;
        it->key = key;
        may = it->count < fault->times;
        it->count += may;
        break;
    }
    lock(F_UNLCK);
    return may;
}

static bool is_there(const char *text) {
    for (int i = 0; i < machine.fault_count; i++)
        if (!strcmp(machine.faults[i].text, text)) return true;
    return false;
}

void machine_hold_until_mended(const struct fault *fault) {
    char text[sizeof fault->text];
    memcpy(text, fault->text, sizeof text);
    for (; is_there(text); machine_refresh()) nanosleep(&(struct timespec){.tv_nsec = 20000000L}, NULL);
}

int machine_apps(int gpu, struct app *apps, int most) {
    int count = 0;
    if (!strcmp(machine.apps, "none")) return 0;
    long shift = !strcmp(machine.apps, "host") ? 1000000 : 0;
    lock(F_WRLCK);
    drop_the_dead();
    for (struct holding *it = shared->holdings; it < shared->holdings + MAX_HOLDINGS && count < most; it++)
        if (it->pid != 0 && machine.units[it->unit].gpu == gpu) {
            apps[count] = (struct app){.gpu = gpu, .pid = it->pid + shift, .bytes = it->bytes};
            copy(apps[count++].name, sizeof apps->name, it->name);
        }
    lock(F_UNLCK);
    for (int i = 0; i < machine.neighbour_count && count < most; i++)
        if (machine.neighbours[i].gpu == gpu) {
            apps[count] = (struct app){.gpu = gpu, .pid = machine.neighbours[i].pid, .bytes = machine.neighbours[i].bytes};
            copy(apps[count++].name, sizeof apps->name, machine.neighbours[i].name);
        }
    return count;
}
