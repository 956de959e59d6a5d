/* See fs.h. Wraps POSIX calls; the message of every failure contains the path. */
#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

static DsvStatus io_failure(const char *path, const char *doing)
{
    DsvStatus status = errno == ENOENT ? DSV_E_NOT_FOUND : DSV_E_IO;
    const char *reason = errno == ELOOP ? "it is a link" : strerror(errno);
    return DSVI_FAIL(status, "%s: cannot %s: %s", path, doing, reason);
}

DsvStatus dsvi_path_join(char out[DSVI_PATH_MAX], const char *folder, const char *name)
{
    size_t length = strlen(folder);
    const char *slash = length > 0 && folder[length - 1] == '/' ? "" : "/";
    if (snprintf(out, DSVI_PATH_MAX, "%s%s%s", folder, slash, name) >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", folder, DSVI_PATH_MAX - 1);
    return DSV_OK;
}

bool dsvi_path_exists(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0;
}

bool dsvi_path_is_folder(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

bool dsvi_path_same(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

bool dsvi_path_is_open_as(const char *path, int descriptor)
{
    struct stat named, opened;
    return stat(path, &named) == 0 && fstat(descriptor, &opened) == 0 && named.st_dev == opened.st_dev &&
           named.st_ino == opened.st_ino;
}

DsvStatus dsvi_folder_make(const char *path)
{
    char part[DSVI_PATH_MAX];
    if (!path[0])
        return DSVI_FAIL(DSV_E_USAGE, "a folder to make has no name");
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    for (char *slash = part + 1; slash;) {
        slash = strchr(slash, '/');
        if (slash)
            *slash = 0;
        if (!dsvi_path_is_folder(part) && mkdir(part, 0777) != 0 && errno != EEXIST)
            return io_failure(part, "make the folder");
        if (slash)
            *slash++ = '/';
    }
    if (!dsvi_path_is_folder(path))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot make the folder: a file of this name exists", path);
    return DSV_OK;
}

/* Order of folder entries for scandir(): that of strcmp, because the order of alphasort depends on the
   locale. */
static int by_entry_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

DsvStatus dsvi_folder_list(const char *path, DsvStatus (*fn)(void *context, const char *name), void *context)
{
    struct dirent **entries;
    DsvStatus status = DSV_OK;
    int count = scandir(path, &entries, NULL, by_entry_name);
    if (count < 0)
        return io_failure(path, "list the folder");
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (status == DSV_OK && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            status = fn(context, name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static DsvStatus remove_entry(void *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder, name));
    return dsvi_folder_remove(path);
}

DsvStatus dsvi_folder_remove(const char *path)
{
    struct stat found;
    if (lstat(path, &found) != 0)
        return errno == ENOENT ? DSV_OK : io_failure(path, "read its attributes");
    if (!S_ISDIR(found.st_mode))
        return unlink(path) == 0 ? DSV_OK : io_failure(path, "remove it");
    DSVI_TRY(dsvi_folder_list(path, remove_entry, (void *)path));
    return rmdir(path) == 0 ? DSV_OK : io_failure(path, "remove the folder");
}

DsvStatus dsvi_file_stamp(const char *path, DsviFileStamp *stamp)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return io_failure(path, "read its attributes");
    if (!S_ISREG(found.st_mode))
        return DSVI_FAIL(DSV_E_IO, "%s: not a regular file", path);
    stamp->bytes = (uint64_t)found.st_size;
    stamp->modified = (double)found.st_mtim.tv_sec + 1e-9 * (double)found.st_mtim.tv_nsec;
    return DSV_OK;
}

DsvStatus dsvi_file_size(const char *path, uint64_t *bytes)
{
    DsviFileStamp stamp;
    DSVI_TRY(dsvi_file_stamp(path, &stamp));
    *bytes = stamp.bytes;
    return DSV_OK;
}

/* Reads `room` bytes, or fewer if the file ends before. */
static DsvStatus read_full(int file, const char *path, void *data, size_t room, size_t *got)
{
    *got = 0;
    while (*got < room) {
        ssize_t n = read(file, (char *)data + *got, room - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_failure(path, "read it");
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return DSV_OK;
}

DsvStatus dsvi_file_read(const char *path, size_t limit, char **out, size_t *bytes)
{
    DsvStatus status;
    uint64_t size;
    char *data = NULL;
    int file = -1;
    DSVI_TRY(dsvi_file_size(path, &size));
    if (size > limit)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %llu bytes, expected at most %zu", path, (unsigned long long)size,
                         limit);
    data = malloc((size_t)size + 1);
    if (!data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its %llu bytes", path, (unsigned long long)size);
    file = open(path, O_RDONLY | O_CLOEXEC);
    status = file < 0 ? io_failure(path, "open it") : read_full(file, path, data, (size_t)size, bytes);
    if (file >= 0)
        close(file);
    if (status != DSV_OK) {
        free(data);
        return status;
    }
    data[*bytes] = 0;
    *out = data;
    return DSV_OK;
}

static DsvStatus write_full(int file, const char *path, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = write(file, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return DSVI_FAIL(DSV_E_IO, "%s: cannot write %zu bytes more: %s", path, bytes - done,
                             n < 0 ? strerror(errno) : "none were taken");
        done += (size_t)n;
    }
    return DSV_OK;
}

DsvStatus dsvi_file_finish(int file, const char *path, DsvStatus status)
{
    if (status == DSV_OK && fsync(file) != 0)
        status = io_failure(path, "sync it");
    if (close(file) != 0 && status == DSV_OK)
        status = io_failure(path, "close it");
    return status;
}

/* If `path` is a symbolic link, the write fails, because the target of the link may be somebody else's. */
DsvStatus dsvi_file_create(const char *path, int *file)
{
    *file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    return *file < 0 ? io_failure(path, "write it") : DSV_OK;
}

DsvStatus dsvi_file_write_at(int file, const char *path, size_t place, const void *data, size_t bytes)
{
    if (lseek(file, (off_t)place, SEEK_SET) < 0)
        return io_failure(path, "write it");
    return write_full(file, path, data, bytes);
}

DsvStatus dsvi_file_write_parts(const char *path, const DsviFilePart *parts, size_t count)
{
    DsvStatus status = DSV_OK;
    int file;
    DSVI_TRY(dsvi_file_create(path, &file));
    for (size_t i = 0; i < count && status == DSV_OK; i++)
        status = write_full(file, path, parts[i].data, parts[i].bytes);
    return dsvi_file_finish(file, path, status);
}

DsvStatus dsvi_file_write(const char *path, const void *data, size_t bytes)
{
    return dsvi_file_write_parts(path, &(DsviFilePart){data, bytes}, 1);
}

DsvStatus dsvi_folder_sync(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return io_failure(path, "open the folder");
    DsvStatus status = fsync(folder) == 0 ? DSV_OK : io_failure(path, "sync the folder");
    close(folder);
    return status;
}

/* Writes the folder that contains `path` to `out`. */
static void parent_of(const char *path, char out[DSVI_PATH_MAX])
{
    snprintf(out, DSVI_PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash)
        snprintf(out, DSVI_PATH_MAX, ".");
    else
        slash[slash == out] = 0; /* the root keeps its slash */
}

DsvStatus dsvi_path_rename(const char *from, const char *to)
{
    char folder[DSVI_PATH_MAX];
    if (rename(from, to) != 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot rename it to %s: %s", from, to, strerror(errno));
    parent_of(to, folder);
    return dsvi_folder_sync(folder);
}

/* Creates path.tmp. A file that a killed process left there is removed; a symbolic link is removed without
 * touching its target. */
static DsvStatus open_temporary(const char *path, char temporary[DSVI_PATH_MAX], int *file)
{
    if (snprintf(temporary, DSVI_PATH_MAX, "%s.tmp", path) >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 5);
    unlink(temporary);
    *file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return *file < 0 ? io_failure(path, "write it") : DSV_OK;
}

/* Renames the closed temporary file to `path` if writing it succeeded (`status`); removes it otherwise. */
static DsvStatus place_temporary(const char *temporary, const char *path, DsvStatus status)
{
    if (status == DSV_OK)
        status = dsvi_path_rename(temporary, path);
    if (status != DSV_OK)
        unlink(temporary);
    return status;
}

DsvStatus dsvi_file_check_writable(const char *path)
{
    char temporary[DSVI_PATH_MAX];
    int file = -1;
    if (dsvi_path_is_folder(path))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot write it: a folder of this name exists", path);
    DSVI_TRY(open_temporary(path, temporary, &file));
    close(file);
    unlink(temporary);
    return DSV_OK;
}

DsvStatus dsvi_file_replace(const char *path, const void *data, size_t bytes)
{
    char temporary[DSVI_PATH_MAX];
    int file = -1;
    DSVI_TRY(open_temporary(path, temporary, &file));
    DsvStatus status = write_full(file, temporary, data, bytes);
    return place_temporary(temporary, path, dsvi_file_finish(file, temporary, status));
}

DsvStatus dsvi_file_copy_from(int source, uint64_t offset, const char *path)
{
    enum { PIECE = 1 << 30 };
    char temporary[DSVI_PATH_MAX];
    int file = -1;
    off_t at = (off_t)offset;
    ssize_t sent = 1;
    DsvStatus status = DSV_OK;
    DSVI_TRY(open_temporary(path, temporary, &file));
    while (sent > 0 && status == DSV_OK) {
        sent = sendfile(file, source, &at, PIECE);
        if (sent < 0 && errno == EINTR)
            sent = 1;
        else if (sent < 0)
            status = io_failure(temporary, "write it");
    }
    return place_temporary(temporary, path, dsvi_file_finish(file, temporary, status));
}

DsvStatus dsvi_file_copy(const char *from, const char *to)
{
    int file = open(from, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return io_failure(from, "open it");
    DsvStatus status = dsvi_file_copy_from(file, 0, to);
    close(file);
    return status;
}

DsvStatus dsvi_path_move(const char *from, const char *to)
{
    char folder[DSVI_PATH_MAX];
    parent_of(to, folder);
    if (rename(from, to) == 0)
        return dsvi_folder_sync(folder);
    if (errno != EXDEV || dsvi_path_is_folder(from))
        return DSVI_FAIL(DSV_E_IO, "%s: cannot move it to %s: %s", from, to, strerror(errno));
    DSVI_TRY(dsvi_file_copy(from, to));
    if (unlink(from) != 0)
        return io_failure(from, "remove it");
    parent_of(from, folder);
    return dsvi_folder_sync(folder);
}

DsvStatus dsvi_file_sync(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return io_failure(path, "open it");
    DsvStatus status = fsync(file) == 0 ? DSV_OK : io_failure(path, "sync it");
    close(file);
    return status;
}

/* Uses flock() because fcntl() locks do not conflict within one process and are lost when any descriptor of
 * the file is closed. On NFS, Linux turns flock() into a lock at the server. */
static DsvStatus lock_descriptor(int file, const char *path)
{
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        return DSV_OK;
    if (errno == EWOULDBLOCK)
        return DSVI_FAIL(DSV_E_USAGE, "%s: locked by another process", path);
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: cannot lock it: %s", path, strerror(errno));
}

/* The process that held the lock may remove the file between open() and flock(). A lock on a removed file
 * excludes nobody, so that the file is then created and locked again. */
DsvStatus dsvi_file_lock(const char *path, int *lock)
{
    for (;;) {
        *lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (*lock < 0)
            return io_failure(path, "open it");
        DsvStatus status = lock_descriptor(*lock, path);
        if (status == DSV_OK && dsvi_path_is_open_as(path, *lock))
            return DSV_OK;
        close(*lock);
        *lock = -1;
        if (status != DSV_OK)
            return status;
    }
}

DsvStatus dsvi_file_checksum(const char *path, uint64_t *checksum)
{
    enum { PIECE = 1 << 16 };
    unsigned char piece[PIECE];
    size_t got = PIECE;
    DsvStatus status = DSV_OK;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return io_failure(path, "open it");
    XXH3_state_t *state = XXH3_createState();
    if (!state) {
        close(file);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a checksum", path);
    }
    XXH3_64bits_reset(state);
    while (status == DSV_OK && got == PIECE) {
        status = read_full(file, path, piece, PIECE, &got);
        if (status == DSV_OK)
            XXH3_64bits_update(state, piece, got);
    }
    *checksum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    close(file);
    return status;
}
