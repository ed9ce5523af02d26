/* The machine: what the control file says of its GPUs, and what processes hold of their memory.
 *
 * Shared by the stand-in for CUDA and NVML (libnullgpu.so) and by the stand-in for nvidia-smi, so that they agree.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_GPUS 16
#define MAX_UNITS 64
#define MAX_NEIGHBOURS 64
#define MAX_FAULTS 64
#define MAX_HOLDINGS 256

/* What CUDA calls a device: a GPU, or a MIG slice of one. */
struct unit {
    char uuid[64];
    char name[64];
    uint64_t memory; /* bytes */
    int gpu;
    bool slice;
};

struct gpu {
    char uuid[64];
    char name[64];
    uint64_t memory; /* bytes */
    int slices;      /* 0 = MIG is off */
    char mode[24];   /* default | exclusive | prohibited */
    int lost;        /* 0, or the code with which calls that use it fail */
    char recovery[40];
    int ecc;
    char remap[16]; /* "", pending, failure */
};

/* Memory that somebody else holds. */
struct neighbour {
    int gpu;
    uint64_t bytes;
    long pid;
    char name[64];
};

enum fault_kind { FAULT_CODE, FAULT_HANG, FAULT_KILL, FAULT_SLOW, FAULT_HOLD };

struct fault {
    char text[256];
    enum fault_kind kind;
    int code; /* an error code, a signal, or milliseconds */
    char place[96];
    long first, last;                 /* which of the matching events, counted in each process; last < 0: no end */
    long process_first, process_last; /* order in which processes first asked the driver; 0 = any */
    int unit;                         /* the GPU's index; -1 = any */
    int sticky;                       /* 1, 0, or -1: as the code is on a real device */
    long late;                        /* calls that wait and do not notice it */
    long times;                       /* how often in all, whatever the process; 0 = any number */
    char argv[96];                    /* only processes with this in their command line, or in the path of the file
                                         that their standard output is */
    char with[64];                    /* only processes that have this environment variable, or NAME=VALUE */
    long seen;                        /* matching events so far in this process */
};

struct machine {
    int gpu_count, unit_count, neighbour_count, fault_count;
    struct gpu gpus[MAX_GPUS];
    struct unit units[MAX_UNITS];
    struct neighbour neighbours[MAX_NEIGHBOURS];
    struct fault faults[MAX_FAULTS];
    uint64_t context_bytes;
    uint64_t copy_limit_bytes;
    double giveback_s;
    int nvml_init, nvml_handle, nvml_processes;
    int capability; /* 80 = 8.0 */
    int boolean;    /* what a copy of one byte to the host says */
    bool trace;
    char smi[256];  /* ok | hang | slow:SECONDS | fail:CODE:TEXT */
    char apps[16];  /* what nvidia-smi tells of processes: all | none | host (pids that are not ours) */
    char driver[32], cuda[16];
};

extern struct machine machine;

/* Read the control file again if it has changed. */
void machine_refresh(void);

const char *machine_folder(void);

/* Memory of a unit that is in use, by whomever; drops processes that are gone. */
uint64_t machine_used(int unit);

/* Memory of a GPU that is in use, over all its slices. */
uint64_t machine_used_of_gpu(int gpu);

/* Add to what this process holds of the unit. Returns 0, or 2 where there is not as much memory. */
int machine_hold(int unit, int64_t bytes);

/* Begin a context: 0, 2 (no memory for it) or 46 (the compute mode forbids it). */
int machine_begin_context(int unit);

/* The place of this process in the order of those that asked the driver: 1, 2, … */
long machine_next_ordinal(void);

/* Wait until the control file has this fault no longer. The faults are others afterwards: no pointer to one is valid. */
void machine_hold_until_mended(const struct fault *fault);

/* Count a fault that is limited to so many times in all; false where they are used up. */
bool machine_may_fire(const struct fault *fault);

struct app {
    int gpu;
    long pid;
    uint64_t bytes;
    char name[128];
};

/* Processes that hold memory of the GPU, neighbours included. */
int machine_apps(int gpu, struct app *apps, int most);

/* PCI bus number of a GPU; domain, device and function are 0. */
int machine_bus(int gpu);

#endif
