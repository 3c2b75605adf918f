/* Preloaded into a program, lets a folder behave as on a frozen file system.

   While the file named by HUNG_FLAG exists, every call that would write below the folder named by
   HUNG_FOLDER waits; calls that read go on. Removing the flag thaws the folder. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_below(const char *path) {
    const char *folder = getenv("HUNG_FOLDER");
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static void wait_for_thaw(void) {
    const char *flag = getenv("HUNG_FLAG");
    struct timespec pause = {0, 5000000};
    while (flag && syscall(SYS_faccessat, AT_FDCWD, flag, F_OK) == 0)
        nanosleep(&pause, NULL);
}

static void wait_for_handle(int handle) {
    char link[64], path[PATH_MAX];
    ssize_t length;
    int number = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    length = readlink(link, path, sizeof path - 1);
    errno = number;
    if (length < 0)
        return;
    path[length] = 0;
    if (is_below(path))
        wait_for_thaw();
}

static void wait_for_path(int folder, const char *path) {
    if (path && path[0] != '/' && folder != AT_FDCWD)
        wait_for_handle(folder);
    else if (path && is_below(path))
        wait_for_thaw();
}

#define BY_HANDLE(type, name, parameters, arguments) \
    type name parameters { wait_for_handle(handle); return REAL(name) arguments; }

BY_HANDLE(int, fsync, (int handle), (handle))
BY_HANDLE(int, fdatasync, (int handle), (handle))
BY_HANDLE(ssize_t, write, (int handle, const void *data, size_t n), (handle, data, n))
BY_HANDLE(ssize_t, pwrite, (int handle, const void *data, size_t n, off_t at), (handle, data, n, at))
BY_HANDLE(ssize_t, pwrite64, (int handle, const void *data, size_t n, off64_t at), (handle, data, n, at))
BY_HANDLE(ssize_t, writev, (int handle, const struct iovec *parts, int n), (handle, parts, n))
BY_HANDLE(int, ftruncate, (int handle, off_t size), (handle, size))
BY_HANDLE(int, ftruncate64, (int handle, off64_t size), (handle, size))
BY_HANDLE(int, fchmod, (int handle, mode_t mode), (handle, mode))
BY_HANDLE(int, fallocate, (int handle, int mode, off_t at, off_t n), (handle, mode, at, n))
BY_HANDLE(int, posix_fallocate, (int handle, off_t at, off_t n), (handle, at, n))
BY_HANDLE(int, futimens, (int handle, const struct timespec times[2]), (handle, times))

#define BY_PATH(name, parameters, arguments, folder, path) \
    int name parameters { wait_for_path(folder, path); return REAL(name) arguments; }

BY_PATH(unlink, (const char *path), (path), AT_FDCWD, path)
BY_PATH(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, path)
BY_PATH(rmdir, (const char *path), (path), AT_FDCWD, path)
BY_PATH(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
BY_PATH(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), folder, path)
BY_PATH(chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
BY_PATH(fchmodat, (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags), folder, path)
BY_PATH(truncate, (const char *path, off_t size), (path, size), AT_FDCWD, path)
BY_PATH(truncate64, (const char *path, off64_t size), (path, size), AT_FDCWD, path)
BY_PATH(rename, (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(renameat, (int a, const char *from, int folder, const char *to), (a, from, folder, to), folder, to)
BY_PATH(link, (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(linkat, (int a, const char *from, int folder, const char *to, int flags), (a, from, folder, to, flags), folder, to)
BY_PATH(symlink, (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(utimensat, (int folder, const char *path, const struct timespec times[2], int flags), (folder, path, times, flags), folder, path)
BY_PATH(utimes, (const char *path, const struct timeval times[2]), (path, times), AT_FDCWD, path)

/* A frozen file system lets an existing file be opened for writing, but creates none. */
static int creates(int folder, const char *path, int flags) {
    int number = errno, is_new;
    is_new = flags & O_CREAT && syscall(SYS_faccessat, folder, path, F_OK) != 0;
    errno = number;
    return is_new || flags & O_TRUNC;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; \
        mode_t mode; \
        va_start(more, flags); \
        mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (creates(AT_FDCWD, path, flags)) wait_for_path(AT_FDCWD, path); \
        return REAL(name)(path, flags, mode); \
    }

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; \
        mode_t mode; \
        va_start(more, flags); \
        mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (creates(folder, path, flags)) wait_for_path(folder, path); \
        return REAL(name)(folder, path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
