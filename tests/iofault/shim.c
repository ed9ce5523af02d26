/* Fails chosen calls of libc that change or open files, in this process and whatever it starts: see shim.py.

   LD_PRELOAD this library. What to fail stands in a block of memory that all processes share (block.h); its file is
   named by IOFAULT, or given to iofault_open(). A call is told by its position: role of the process, kind of call,
   path below the root, and which time it is. Without a block every call goes straight through. */

#include "block.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct block *block;
static char role[16] = "other";

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* --- set-up */

/* Which process this is. */
void iofault_role(const char *name) { snprintf(role, sizeof role, "%s", name); }

/* Use the block in this file. Returns 0 where it can be had. */
int iofault_open(const char *path) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    void *found = mmap(NULL, sizeof *block, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found == MAP_FAILED) return -1;
    block = found;
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("IOFAULT"), *name = getenv("IOFAULT_ROLE");
    if (name) iofault_role(name);
    if (path) iofault_open(path);
}

/* --- positions */

static uint64_t hashed(uint64_t hash, const char *text) { /* FNV-1a */
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return (hash ^ 0xff) * 1099511628211u;
}

/* Names that differ from run to run come out the same: digests, and folders called by the time of day. */
static void simplify(const char *path, char *out, size_t size) {
    size_t used = 0;
    while (*path && used + 2 < size) {
        size_t hex = strspn(path, "0123456789abcdef");
        size_t stamp = strspn(path, "0123456789_-");
        if (hex >= 16 || stamp >= 17) {
            out[used++] = '*';
            path += hex > stamp ? hex : stamp;
        } else if (hex) {
            while (hex-- && used + 2 < size) out[used++] = *path++;
        } else {
            out[used++] = *path++;
        }
    }
    out[used] = 0;
}

/* How often this position's call has been made, this time among them; 0 where the table is full. */
static uint32_t count_of(uint64_t key) {
    for (uint64_t at = key, tries = 0; tries < SLOTS; at++, tries++) {
        struct slot *slot = &block->slots[at % SLOTS];
        uint64_t found = __atomic_load_n(&slot->key, __ATOMIC_ACQUIRE);
        if (!found) __atomic_compare_exchange_n(&slot->key, &found, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        if (!found || found == key) return __atomic_add_fetch(&slot->count, 1, __ATOMIC_ACQ_REL);
    }
    return 0;
}

static void tell(const char *kind, const char *call, const char *path, uint32_t time, int failed) {
    char line[PATH_BYTES + 128];
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%u\t%s\t%d\n", role, kind, path, time, call, failed);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, block->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    syscall(SYS_write, fd, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
    syscall(SYS_close, fd);
}

/* The error that the call is to fail with, SHORT, or 0. */
static int judged(const char *kind, const char *call, const char *path) {
    size_t length = strlen(block->root);
    if (strncmp(path, block->root, length) || path[length] != '/') return 0;
    char simple[PATH_BYTES];
    simplify(path + length + 1, simple, sizeof simple);
    uint64_t where = hashed(hashed(14695981039346656037u, role), kind);
    uint64_t key = hashed(where, simple);
    uint32_t time = count_of(key ? key : 1);
    if (block->mode == RECORD) tell(kind, call, simple, time, 0);
    if (block->mode != FAIL) return 0;
    if (key == block->key && time == block->time) {
        __atomic_store_n(&block->begun, 1, __ATOMIC_RELEASE);
        __atomic_add_fetch(&block->failed, 1, __ATOMIC_ACQ_REL);
        tell(kind, call, simple, time, block->error);
        return block->error;
    }
    if (block->for_good && where == block->where && __atomic_load_n(&block->begun, __ATOMIC_ACQUIRE)) {
        __atomic_add_fetch(&block->failed, 1, __ATOMIC_ACQ_REL);
        /* What could be written once in part cannot be written at all from then on. */
        return block->error == SHORT ? ENOSPC : block->error;
    }
    return 0;
}

static int link_of(int fd, char *out) {
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, name, out, PATH_BYTES - 1);
    if (size < 0) return -1;
    out[size] = 0;
    return 0;
}

static int by_fd(const char *kind, const char *call, int fd) {
    char path[PATH_BYTES];
    int before = errno;
    if (!block || block->mode == OFF || link_of(fd, path)) return errno = before, 0;
    errno = before;
    return judged(kind, call, path);
}

static int by_path(const char *kind, const char *call, int folder, const char *path) {
    char whole[2 * PATH_BYTES];
    if (!block || block->mode == OFF || !path) return 0;
    if (*path == '/') return judged(kind, call, path);
    int before = errno;
    if (folder == AT_FDCWD ? syscall(SYS_getcwd, whole, PATH_BYTES) < 0 : link_of(folder, whole) < 0)
        return errno = before, 0;
    errno = before;
    size_t used = strlen(whole);
    snprintf(whole + used, sizeof whole - used, "/%s", path);
    return judged(kind, call, whole);
}

/* --- the calls */

#define FAIL_WITH(error)                                                                                               \
    do {                                                                                                               \
        int e_ = (error);                                                                                              \
        if (e_) {                                                                                                      \
            errno = e_ == SHORT ? ENOSPC : e_;                                                                         \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static const char *opening(int flags) { return flags & O_CREAT ? "create" : flags & 3 ? "change" : "open"; }

#define MODE_OF(flags)                                                                                                 \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(name);                                                                                                    \
        MODE_OF(flags)                                                                                                 \
        FAIL_WITH(by_path(opening(flags), #name, AT_FDCWD, path));                                                     \
        return real(path, flags, mode);                                                                                \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        REAL(name);                                                                                                    \
        MODE_OF(flags)                                                                                                 \
        FAIL_WITH(by_path(opening(flags), #name, folder, path));                                                       \
        return real(folder, path, flags, mode);                                                                        \
    }
OPENAT(openat)
OPENAT(openat64)

/* What a call of open becomes where the caller was compiled with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int folder, const char *path, int flags);
int __openat64_2(int folder, const char *path, int flags);
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }

#define FOPEN(name)                                                                                                    \
    FILE *name(const char *path, const char *how) {                                                                    \
        REAL(name);                                                                                                    \
        int e = by_path(*how == 'r' && !strchr(how, '+') ? "open" : "create", #name, AT_FDCWD, path);                  \
        if (e) return errno = e, NULL;                                                                                 \
        return real(path, how);                                                                                        \
    }
FOPEN(fopen)
FOPEN(fopen64)

DIR *opendir(const char *path) {
    REAL(opendir);
    int e = by_path("open", "opendir", AT_FDCWD, path);
    if (e) return errno = e, NULL;
    return real(path);
}

/* A write that is to be short takes the first half. */
#define WRITING(name, fd, size, whole, half)                                                                           \
    REAL(name);                                                                                                        \
    int e = by_fd("write", #name, fd);                                                                                 \
    if (e == SHORT && (size) > 1) return half;                                                                         \
    FAIL_WITH(e);                                                                                                      \
    return whole;

ssize_t write(int fd, const void *data, size_t size) {
    WRITING(write, fd, size, real(fd, data, size), real(fd, data, size / 2))
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITING(pwrite, fd, size, real(fd, data, size, at), real(fd, data, size / 2, at))
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    WRITING(pwrite64, fd, size, real(fd, data, size, at), real(fd, data, size / 2, at))
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    WRITING(writev, fd, count, real(fd, parts, count), real(fd, parts, count / 2))
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    WRITING(pwritev, fd, count, real(fd, parts, count, at), real(fd, parts, count / 2, at))
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    WRITING(pwritev64, fd, count, real(fd, parts, count, at), real(fd, parts, count / 2, at))
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    WRITING(sendfile, to, size, real(to, from, at, size), real(to, from, at, size / 2))
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    WRITING(sendfile64, to, size, real(to, from, at, size), real(to, from, at, size / 2))
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t size, unsigned flags) {
    WRITING(copy_file_range, to, size, real(from, at, to, there, size, flags), real(from, at, to, there, size / 2, flags))
}

#define ON_FD(kind, name)                                                                                              \
    int name(int fd) {                                                                                                 \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_fd(kind, #name, fd));                                                                             \
        return real(fd);                                                                                               \
    }
ON_FD("sync", fsync)
ON_FD("sync", fdatasync)
ON_FD("sync", syncfs)

#define SIZING(name, type)                                                                                             \
    int name(int fd, type size) {                                                                                      \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_fd("truncate", #name, fd));                                                                       \
        return real(fd, size);                                                                                         \
    }
SIZING(ftruncate, off_t)
SIZING(ftruncate64, off64_t)

#define SIZING_PATH(name, type)                                                                                        \
    int name(const char *path, type size) {                                                                            \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_path("truncate", #name, AT_FDCWD, path));                                                         \
        return real(path, size);                                                                                       \
    }
SIZING_PATH(truncate, off_t)
SIZING_PATH(truncate64, off64_t)

#define ALLOCATING(name, type)                                                                                         \
    int name(int fd, int how, type at, type size) {                                                                    \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_fd("allocate", #name, fd));                                                                       \
        return real(fd, how, at, size);                                                                                \
    }
ALLOCATING(fallocate, off_t)
ALLOCATING(fallocate64, off64_t)

/* These return the error. */
#define POSIX_ALLOCATING(name, type)                                                                                   \
    int name(int fd, type at, type size) {                                                                             \
        REAL(name);                                                                                                    \
        int e = by_fd("allocate", #name, fd);                                                                          \
        return e ? e : real(fd, at, size);                                                                             \
    }
POSIX_ALLOCATING(posix_fallocate, off_t)
POSIX_ALLOCATING(posix_fallocate64, off64_t)

/* Of two paths, the new one tells the position. */
#define TWO_PATHS(kind, name)                                                                                          \
    int name(const char *from, const char *to) {                                                                       \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_path(kind, #name, AT_FDCWD, to));                                                                 \
        return real(from, to);                                                                                         \
    }
TWO_PATHS("rename", rename)
TWO_PATHS("link", link)
TWO_PATHS("link", symlink)

int renameat(int folder, const char *from, int there, const char *to) {
    REAL(renameat);
    FAIL_WITH(by_path("rename", "renameat", there, to));
    return real(folder, from, there, to);
}
int renameat2(int folder, const char *from, int there, const char *to, unsigned flags) {
    REAL(renameat2);
    FAIL_WITH(by_path("rename", "renameat2", there, to));
    return real(folder, from, there, to, flags);
}
int linkat(int folder, const char *from, int there, const char *to, int flags) {
    REAL(linkat);
    FAIL_WITH(by_path("link", "linkat", there, to));
    return real(folder, from, there, to, flags);
}
int symlinkat(const char *from, int there, const char *to) {
    REAL(symlinkat);
    FAIL_WITH(by_path("link", "symlinkat", there, to));
    return real(from, there, to);
}

#define ONE_PATH(kind, name)                                                                                           \
    int name(const char *path) {                                                                                       \
        REAL(name);                                                                                                    \
        FAIL_WITH(by_path(kind, #name, AT_FDCWD, path));                                                               \
        return real(path);                                                                                             \
    }
ONE_PATH("remove", unlink)
ONE_PATH("remove", rmdir)
ONE_PATH("remove", remove)

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    FAIL_WITH(by_path("remove", "unlinkat", folder, path));
    return real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    FAIL_WITH(by_path("mkdir", "mkdir", AT_FDCWD, path));
    return real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    FAIL_WITH(by_path("mkdir", "mkdirat", folder, path));
    return real(folder, path, mode);
}
