/* Writes down every call that changes files beneath LOSTWRITES_ROOT, in the order in which the kernel did them.
 *
 * Preloaded into all processes of a recording. A call and its record are made under one lock, which all processes share
 * and the kernel frees when its holder dies, so that the records of several processes are in one order. The record of
 * a write has its data.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROOM 4096

enum { CREATE = 1, MKDIR, WRITE, TRUNCATE, ALLOCATE, RENAME, LINK, SYMLINK, UNLINK, RMDIR, SYNC };

struct header {
    uint32_t kind, path, other, unused;
    uint64_t inode, data;
    int64_t offset;
};

static const char *root_folder, *log_file;

__attribute__((constructor)) static void begin(void) {
    root_folder = getenv("LOSTWRITES_ROOT");
    log_file = getenv("LOSTWRITES_LOG");
    if (log_file == NULL) root_folder = NULL;
}

static int under(const char *folder, const char *path) {
    size_t length = folder ? strlen(folder) : 0;
    return length && !strncmp(path, folder, length) && (path[length] == '/' || path[length] == 0);
}

static int link_of(const char *link, char *room) {
    ssize_t length = readlink(link, room, ROOM - 1);
    room[length < 0 ? 0 : length] = 0;
    return length > 0;
}

/* The full path of a descriptor in the folder that is recorded; else 0. */
static int watched(int fd, char *room) {
    char link[64];
    if (root_folder == NULL || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return link_of(link, room) && under(root_folder, room);
}

static int watched_path(int folder, const char *path, char *room) {
    if (root_folder == NULL || path == NULL) return 0;
    if (path[0] == '/') {
        snprintf(room, ROOM, "%s", path);
    } else {
        char link[64];
        if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        if (!link_of(link, room)) return 0;
        size_t length = strlen(room);
        snprintf(room + length, ROOM - length, "/%s", path);
    }
    return under(root_folder, room);
}

static int lock(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    while (fd >= 0 && flock(fd, LOCK_EX) && errno == EINTR) {}
    return fd;
}

static void tell(int log, uint32_t kind, uint64_t inode, const char *path, const char *other, int64_t offset,
                 const struct iovec *data, int parts, uint64_t size) {
    struct header header = {kind, (uint32_t)strlen(path), (uint32_t)strlen(other), 0, inode, size, offset};
    struct iovec all[64] = {{&header, sizeof header}, {(void *)path, header.path}, {(void *)other, header.other}};
    int count = 3;
    uint64_t left = size;
    for (int part = 0; part < parts && left && count < 64; part++) {
        all[count] = data[part];
        if (all[count].iov_len > left) all[count].iov_len = left;
        left -= all[count++].iov_len;
    }
    if (left || syscall(SYS_writev, log, all, count) < 0) abort();
}

static void unlock(int log) {
    int before = errno;
    if (log >= 0) syscall(SYS_close, log);
    errno = before;
}

static uint64_t inode_of(int fd) {
    struct stat state;
    return syscall(SYS_newfstatat, fd, "", &state, AT_EMPTY_PATH) ? 0 : state.st_ino;
}

static uint64_t inode_at(const char *path, int follow) {
    struct stat state;
    int flags = follow ? 0 : AT_SYMLINK_NOFOLLOW;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &state, flags) ? 0 : state.st_ino;
}

static int opened(int folder, const char *path, int flags, int mode) {
    char room[ROOM];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !watched_path(folder, path, room))
        return (int)syscall(SYS_openat, folder, path, flags, mode);
    int log = lock();
    uint64_t before = inode_at(room, 1);
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && !before) tell(log, CREATE, inode_of(fd), room, "", 0, NULL, 0, 0);
    else if (fd >= 0 && flags & O_TRUNC) tell(log, TRUNCATE, before, room, "", 0, NULL, 0, 0);
    unlock(log);
    return fd;
}

#define MODE(flags)                                                                                                    \
    int mode = 0;                                                                                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, int);                                                                                      \
        va_end(rest);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, (int)mode); }

/* `offset` < 0: at the descriptor's own position. */
static ssize_t written(int fd, const struct iovec *data, int parts, off_t offset) {
    char room[ROOM];
    int log = watched(fd, room) ? lock() : -1;
    ssize_t count = offset < 0 ? syscall(SYS_writev, fd, data, parts) : syscall(SYS_pwritev, fd, data, parts, offset, 0);
    if (log >= 0 && count > 0) {
        off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) - count : offset;
        tell(log, WRITE, inode_of(fd), room, "", at, data, parts, (uint64_t)count);
    }
    unlock(log);
    return count;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec one = {(void *)data, size};
    return written(fd, &one, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    struct iovec one = {(void *)data, size};
    return written(fd, &one, 1, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }
ssize_t writev(int fd, const struct iovec *data, int parts) { return written(fd, data, parts, -1); }
ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t offset) { return written(fd, data, parts, offset); }
ssize_t pwritev64(int fd, const struct iovec *data, int parts, off_t offset) { return written(fd, data, parts, offset); }

int ftruncate(int fd, off_t size) {
    char room[ROOM];
    int log = watched(fd, room) ? lock() : -1;
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (log >= 0 && !result) tell(log, TRUNCATE, inode_of(fd), room, "", size, NULL, 0, 0);
    unlock(log);
    return result;
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    char room[ROOM];
    int log = watched_path(AT_FDCWD, path, room) ? lock() : -1;
    int result = (int)syscall(SYS_truncate, path, size);
    if (log >= 0 && !result) tell(log, TRUNCATE, inode_at(room, 1), room, "", size, NULL, 0, 0);
    unlock(log);
    return result;
}
int truncate64(const char *path, off_t size) { return truncate(path, size); }

int fallocate(int fd, int mode, off_t offset, off_t size) {
    char room[ROOM];
    int log = watched(fd, room) ? lock() : -1;
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (log >= 0 && !result && !mode) tell(log, ALLOCATE, inode_of(fd), room, "", offset + size, NULL, 0, 0);
    unlock(log);
    return result;
}
int fallocate64(int fd, int mode, off_t offset, off_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size) { return fallocate(fd, 0, offset, size) ? errno : 0; }
int posix_fallocate64(int fd, off_t offset, off_t size) { return posix_fallocate(fd, offset, size); }

static int synced(int fd, long number) {
    char room[ROOM];
    int log = watched(fd, room) ? lock() : -1;
    int result = (int)syscall(number, fd);
    if (log >= 0 && !result) tell(log, SYNC, inode_of(fd), room, "", 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int renameat2(int from, const char *old, int to, const char *new, unsigned int flags) {
    char room[ROOM], other[ROOM];
    int here = watched_path(from, old, room), there = watched_path(to, new, other);
    int log = here || there ? lock() : -1;
    uint64_t inode = log >= 0 ? inode_at(room, 0) : 0;
    int result = (int)syscall(SYS_renameat2, from, old, to, new, flags);
    if (log >= 0 && !result) tell(log, RENAME, inode, room, other, 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char room[ROOM], other[ROOM];
    int log = watched_path(from, old, room) && watched_path(to, new, other) ? lock() : -1;
    int result = (int)syscall(SYS_linkat, from, old, to, new, flags);
    if (log >= 0 && !result) tell(log, LINK, inode_at(other, 0), other, room, 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *target, int folder, const char *path) {
    char room[ROOM];
    int log = watched_path(folder, path, room) ? lock() : -1;
    int result = (int)syscall(SYS_symlinkat, target, folder, path);
    if (log >= 0 && !result) tell(log, SYMLINK, inode_at(room, 0), room, target, 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int folder, const char *path, int flags) {
    char room[ROOM];
    int log = watched_path(folder, path, room) ? lock() : -1;
    uint64_t inode = log >= 0 ? inode_at(room, 0) : 0;
    int result = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (log >= 0 && !result) tell(log, flags & AT_REMOVEDIR ? RMDIR : UNLINK, inode, room, "", 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char room[ROOM];
    int log = watched_path(folder, path, room) ? lock() : -1;
    int result = (int)syscall(SYS_mkdirat, folder, path, mode);
    if (log >= 0 && !result) tell(log, MKDIR, inode_at(room, 0), room, "", 0, NULL, 0, 0);
    unlock(log);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
