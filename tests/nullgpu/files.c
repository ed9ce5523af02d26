/* Device files: what begins with /dev/nvidia or /proc/driver/nvidia is looked up in the machine's folder instead.
 *
 * An initialised driver keeps its device files open, which is how a process is known that must not be forked from; here
 * they are plain files, and readlink says of them what it would say on a real machine. Listing /dev does not show them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine.h"

static const char *mapped(const char *path, char *room, size_t size) {
    const char *folder = machine_folder();
    if (folder == NULL || path == NULL) return path;
    if (!strncmp(path, "/dev/nvidia", 11)) snprintf(room, size, "%s%s", folder, path);
    else if (!strncmp(path, "/proc/driver/nvidia", 19)) snprintf(room, size, "%s%s", folder, path);
    else return path;
    return room;
}

int stat(const char *restrict path, struct stat *restrict out) {
    char room[4096];
    return (int)syscall(SYS_newfstatat, AT_FDCWD, mapped(path, room, sizeof room), out, 0);
}

/* The same on x86-64; which of them a program calls is a matter of how it was built. */
int stat64(const char *restrict path, struct stat64 *restrict out) { return stat(path, (struct stat *)out); }

int fstatat64(int folder, const char *restrict path, struct stat64 *restrict out, int flags) {
    char room[4096];
    return (int)syscall(SYS_newfstatat, folder, mapped(path, room, sizeof room), out, flags);
}

int access(const char *path, int mode) {
    char room[4096];
    return (int)syscall(SYS_faccessat, AT_FDCWD, mapped(path, room, sizeof room), mode);
}

static int open_mapped(const char *path, int flags, int mode) {
    char room[4096];
    return (int)syscall(SYS_openat, AT_FDCWD, mapped(path, room, sizeof room), flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    return open_mapped(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    return open_mapped(path, flags | O_LARGEFILE, mode);
}

/* The target of a link into the folder's dev/ begins with /dev/. */
static ssize_t unmapped(char *text, ssize_t size) {
    const char *folder = machine_folder();
    size_t prefix = folder ? strlen(folder) : 0;
    if (prefix == 0 || size <= (ssize_t)prefix + 11 || strncmp(text, folder, prefix)) return size;
    if (strncmp(text + prefix, "/dev/nvidia", 11)) return size;
    memmove(text, text + prefix, (size_t)size - prefix);
    return size - (ssize_t)prefix;
}

ssize_t readlinkat(int folder, const char *restrict path, char *restrict out, size_t size) {
    ssize_t length = syscall(SYS_readlinkat, folder, path, out, size);
    return length < 0 ? length : unmapped(out, length);
}

ssize_t readlink(const char *restrict path, char *restrict out, size_t size) {
    return readlinkat(AT_FDCWD, path, out, size);
}
