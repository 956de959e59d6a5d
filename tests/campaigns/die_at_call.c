/* Preloaded into dsv: ends the process, as kill -9 does, before call number DSV_DIE_AT of the calls that
 * change files. In a third of the cases the process dies in the middle of a write(). */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static int is_last(void)
{
    static long last = -1;
    if (last < 0)
        last = getenv("DSV_DIE_AT") ? atol(getenv("DSV_DIE_AT")) : 0;
    return atomic_fetch_add(&calls, 1) + 1 == last;
}

static void count(void)
{
    if (is_last())
        raise(SIGKILL);
}

/* The C library's function. */
#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t bytes)
{
    REAL(write);
    if (file > STDERR_FILENO && is_last()) {
        if (calls % 3 == 0)
            (void)!real(file, data, bytes / 2);
        raise(SIGKILL);
    }
    return real(file, data, bytes);
}

ssize_t sendfile(int to, int from, off_t *at, size_t bytes)
{
    REAL(sendfile);
    count();
    return real(to, from, at, bytes);
}

int fflush(FILE *file)
{
    REAL(fflush);
    if (file != stdout && file != stderr)
        count();
    return real(file);
}

int fsync(int file)
{
    REAL(fsync);
    count();
    return real(file);
}

int ftruncate(int file, off_t bytes)
{
    REAL(ftruncate);
    count();
    return real(file, bytes);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    count();
    return real(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    REAL(renameat2);
    count();
    return real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    count();
    return real(path, mode);
}

int unlink(const char *path)
{
    REAL(unlink);
    count();
    return real(path);
}

int rmdir(const char *path)
{
    REAL(rmdir);
    count();
    return real(path);
}

int open(const char *path, int flags, ...)
{
    REAL(open);
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (flags & O_CREAT)
        count();
    return real(path, flags, mode);
}
