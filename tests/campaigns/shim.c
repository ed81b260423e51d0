/* A library for LD_PRELOAD that fails file operations of one database, and moves the clocks.

   The file that HERMES_SHIM names is mapped as a `struct control`. The test writes to it, so that
   settings change while the program runs. Only calls on files whose path begins with
   `control.path` are counted and failed. tests/campaigns/shim.py has the same layout. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, OPEN = 8 };
enum { NONE, IO_ERROR, NO_SPACE, SHORT, LIE };

struct control {
    int64_t fail_at;   /* the number of the call that fails; 0: none */
    int64_t times;     /* how many calls fail, from that one on */
    int64_t kind;      /* how they fail */
    int64_t calls;     /* which calls are counted, as a sum of WRITE, SYNC, ... */
    int64_t count;     /* how many calls there were */
    int64_t failed;    /* how many of them failed */
    int64_t wall;      /* nanoseconds to add to the wall clock */
    int64_t steady;    /* nanoseconds to add to the monotonic clock */
    char path[512];
};

static struct control *control;

__attribute__((constructor)) static void attach(void)
{
    const char *name = getenv("HERMES_SHIM");
    int fd = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found != MAP_FAILED) control = found;
}

#define NEXT(name) ({ \
    static __typeof__(&name) found; \
    if (!found) found = (__typeof__(&name))next(#name); \
    found; \
})

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static int is_database(const char *path)
{
    return control->path[0] && !strncmp(path, control->path, strlen(control->path));
}

static int is_open_database(int fd)
{
    char link[64], path[1024];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_database(path);
}

/* Count a call on a database file; return how it fails. */
static int64_t fault(int call)
{
    if (!(control->calls & call)) return NONE;
    int64_t number = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST);
    int64_t first = control->fail_at;
    if (!first || number < first || number >= first + control->times) return NONE;
    __atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
    return control->kind;
}

static int64_t fault_of(int call, int fd)
{
    if (!control || !(control->calls & call) || !is_open_database(fd)) return NONE;
    int saved = errno;
    int64_t kind = fault(call);
    errno = saved;
    return kind;
}

static int refuse(int64_t kind)
{
    errno = kind == IO_ERROR ? EIO : ENOSPC;
    return -1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    int64_t kind = fault_of(WRITE, fd);
    if (kind == LIE) return (ssize_t)size;
    if (kind == SHORT && size > 1) {
        control->times = 2; /* SQLite writes the rest next: there is no space for it */
        control->kind = NO_SPACE;
        size /= 2;
    } else if (kind != NONE) return refuse(kind);
    return NEXT(pwrite64)(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return pwrite64(fd, data, size, at);
}

int fsync(int fd)
{
    int64_t kind = fault_of(SYNC, fd);
    if (kind == LIE) return 0;
    return kind == NONE ? NEXT(fsync)(fd) : refuse(kind);
}

int fdatasync(int fd)
{
    int64_t kind = fault_of(SYNC, fd);
    if (kind == LIE) return 0;
    return kind == NONE ? NEXT(fdatasync)(fd) : refuse(kind);
}

int ftruncate64(int fd, off64_t size)
{
    int64_t kind = fault_of(TRUNCATE, fd);
    if (kind == LIE) return 0;
    return kind == NONE ? NEXT(ftruncate64)(fd, size) : refuse(kind);
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    if (control && is_database(path)) {
        int64_t kind = fault(OPEN);
        if (kind != NONE && kind != LIE) return refuse(kind);
    }
    return NEXT(open64)(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    return open64(path, flags, mode);
}

/* The clocks. glibc answers most of these calls without the kernel, so each is replaced. */

static int64_t offset(clockid_t clock)
{
    if (!control) return 0;
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: return control->wall;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME: return control->steady;
    default: return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = NEXT(clock_gettime)(clock, now);
    int64_t sum = now->tv_sec * 1000000000LL + now->tv_nsec + offset(clock);
    if (result == 0) {
        now->tv_sec = sum / 1000000000LL;
        now->tv_nsec = sum % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
