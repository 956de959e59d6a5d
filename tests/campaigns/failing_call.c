/* Preloaded into dsv: one call of the C library fails. The environment says which:
 *
 *     DSV_FAIL_CALL   write, fsync, ftruncate, fflush, open, fopen, mkdir, rename, renameat2, unlink or rmdir
 *     DSV_FAIL_AT     the number of the call that fails, from 1; 0: none
 *     DSV_FAIL_WITH   the name of an error number, or SHORT: write() takes half of the bytes
 *     DSV_FAIL_COUNT  a file that is told at the end how many such calls there were
 *
 * Only calls for files of the run's folder count, which is named `run`. open() counts when it opens for
 * writing. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

/* The C library's function of the same name. */
#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static bool is_short(void)
{
    return strcmp(setting("DSV_FAIL_WITH"), "SHORT") == 0;
}

static int error_number(void)
{
    static const struct {
        const char *name;
        int number;
    } known[] = {{"EIO", EIO},     {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EMFILE", EMFILE},
                 {"EINTR", EINTR}, {"ENOSYS", ENOSYS}, {"EACCES", EACCES}, {"EROFS", EROFS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(setting("DSV_FAIL_WITH"), known[i].name) == 0)
            return known[i].number;
    return EIO;
}

static bool is_of_run(const char *path)
{
    return strncmp(path, "run", 3) == 0 || strstr(path, "/run/") || strstr(path, "/run.") ||
           (strlen(path) >= 4 && strcmp(path + strlen(path) - 4, "/run") == 0);
}

/* Counts a call. Returns true and sets errno if this call must fail. */
static bool fails(const char *call, const char *path)
{
    if (strcmp(setting("DSV_FAIL_CALL"), call) != 0 || !is_of_run(path))
        return false;
    if (atomic_fetch_add(&calls, 1) + 1 != atol(setting("DSV_FAIL_AT")))
        return false;
    errno = error_number();
    return true;
}

/* The same for an open file; pipes and the terminal have no path in a run folder. */
static bool fails_file(const char *call, int file)
{
    char link[64], path[4096];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    path[length > 0 ? length : 0] = 0;
    return length > 0 && fails(call, path);
}

__attribute__((destructor)) static void tell_count(void)
{
    FILE *file = setting("DSV_FAIL_COUNT")[0] ? fopen(setting("DSV_FAIL_COUNT"), "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%ld\n", (long)calls);
    fclose(file);
}

ssize_t write(int file, const void *data, size_t bytes)
{
    REAL(write);
    if (!fails_file("write", file))
        return real(file, data, bytes);
    return is_short() ? real(file, data, bytes > 1 ? bytes / 2 : bytes) : -1;
}

int fsync(int file)
{
    REAL(fsync);
    return fails_file("fsync", file) ? -1 : real(file);
}

int ftruncate(int file, off_t bytes)
{
    REAL(ftruncate);
    return fails_file("ftruncate", file) ? -1 : real(file, bytes);
}

int fflush(FILE *file)
{
    REAL(fflush);
    return file && fails_file("fflush", fileno(file)) ? EOF : real(file);
}

int open(const char *path, int flags, ...)
{
    REAL(open);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return (flags & O_ACCMODE) != O_RDONLY && fails("open", path) ? -1 : real(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    REAL(fopen);
    return fails("fopen", path) ? NULL : real(path, mode);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    return fails("mkdir", path) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    return fails("rename", to) ? -1 : real(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    REAL(renameat2);
    return fails("renameat2", to) ? -1 : real(from_folder, from, to_folder, to, flags);
}

int unlink(const char *path)
{
    REAL(unlink);
    return fails("unlink", path) ? -1 : real(path);
}

int rmdir(const char *path)
{
    REAL(rmdir);
    return fails("rmdir", path) ? -1 : real(path);
}
