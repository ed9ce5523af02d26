/* One process's view of the machine: contexts, faults, memory blocks; what runtime.c, driver.c and blas.c share. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

/* What a function does, for `enter`. */
enum {
    DOES_NOTHING = 0,  /* needs no driver */
    NEEDS_DRIVER = 1,  /* initialises the driver, as cuInit does */
    NEEDS_CONTEXT = 2, /* begins the context of the current device */
    WAITS = 4,         /* until the device has done its work: notices its faults */
    POLLS = 8,         /* asks whether it has: notices its faults */
    LAUNCHES = 16,
    COPIES = 32,
    ALLOCATES = 64,
    BLAS = 128,        /* answers with a cublasStatus_t */
    NVML = 256,        /* answers with an nvmlReturn_t */
};

/* At the beginning of every function: counts it, traces it, and returns the error it has to answer with, or 0.
 * `kernel` is the name of the kernel of a launch, else NULL. */
int enter(const char *name, int does, const char *kernel);

/* Remember an error for cudaGetLastError, and return it. */
int fail(int code);

int take_last_error(bool keep);

/* A context of the current device, for the driver's functions. 0 or an error. */
int ensure_context(void);
bool has_context(int ordinal);

int current_device(void);
int set_current_device(int ordinal);
int visible_count(void);
/* The unit behind a device number of this process. */
const struct unit *visible_unit(int ordinal);
int visible_index(int ordinal);

/* Ranges of memory that the runtime knows. */
enum block_kind { BLOCK_DEVICE, BLOCK_PINNED, BLOCK_REGISTERED };
struct block {
    char *start;
    size_t size;
    enum block_kind kind;
    int device;
};
void add_block(void *start, size_t size, enum block_kind kind, int device);
bool remove_block(void *start, struct block *removed);
/* The block around the address, or NULL; valid until the next change. */
const struct block *find_block(const void *address);

int device_malloc(void **out, size_t size);
int device_free(void *pointer);

/* What a function without a body of its own answers with. */
int stub(const char *name, int does, int answer);

#endif
