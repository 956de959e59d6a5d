/* Keeps the files below FUZZ_ROOT in memory. CMakeLists.txt links harnesses with --wrap=open and so on: a
 * call of open() reaches __wrap_open() in this file, and __real_open() is the C library's function, for
 * other paths. For one thread at a time, and few files, which are searched linearly. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 16, OPENED_MAX = 16, NAME_ROOM = 128, FIRST_DESCRIPTOR = 1 << 20 };

typedef struct MemoryFile {
    char name[NAME_ROOM]; /* path below FUZZ_ROOT; "": unused entry */
    bool folder;
    const unsigned char *data;
    unsigned char *own; /* content written by the reader, or NULL while `data` is the input's */
    size_t bytes;
} MemoryFile;

typedef struct Opened {
    MemoryFile *file; /* NULL: a free place */
    FILE *stream;     /* or NULL */
    size_t at;
    bool append;
} Opened;

static MemoryFile files[FILES_MAX];
static Opened opened[OPENED_MAX];
static void *mapped[OPENED_MAX];
static bool accepted;

/* Declares both functions that the linker's --wrap makes of a call. */
#define WRAPPED(result, name, ...)     \
    result __real_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__)

typedef int EntryFilter(const struct dirent *entry);
typedef int EntryOrder(const struct dirent **a, const struct dirent **b);

WRAPPED(int, open, const char *path, int flags, ...);
WRAPPED(int, close, int file);
WRAPPED(ssize_t, read, int file, void *data, size_t bytes);
WRAPPED(ssize_t, pread, int file, void *data, size_t bytes, off_t at);
WRAPPED(ssize_t, write, int file, const void *data, size_t bytes);
WRAPPED(ssize_t, sendfile, int to, int from, off_t *at, size_t bytes);
WRAPPED(int, fstat, int file, struct stat *out);
WRAPPED(int, stat, const char *path, struct stat *out);
WRAPPED(int, lstat, const char *path, struct stat *out);
WRAPPED(int, fsync, int file);
WRAPPED(int, flock, int file, int operation);
WRAPPED(int, ftruncate, int file, off_t bytes);
WRAPPED(int, mkdir, const char *path, mode_t mode);
WRAPPED(int, unlink, const char *path);
WRAPPED(int, rmdir, const char *path);
WRAPPED(int, rename, const char *from, const char *to);
WRAPPED(int, scandir, const char *path, struct dirent ***out, EntryFilter *filter, EntryOrder *order);
WRAPPED(char *, realpath, const char *path, char *out);
WRAPPED(FILE *, fopen, const char *path, const char *mode);
WRAPPED(FILE *, fdopen, int file, const char *mode);
WRAPPED(int, fileno, FILE *stream);
WRAPPED(void *, mmap, void *place, size_t bytes, int access, int flags, int file, off_t from);
WRAPPED(int, munmap, void *place, size_t bytes);

/* ---- Files ---- */

/* The path below FUZZ_ROOT, "" for FUZZ_ROOT itself; NULL for any other path. */
static const char *name_of(const char *path)
{
    const size_t root = strlen(FUZZ_ROOT);
    if (strncmp(path, FUZZ_ROOT, root) != 0 || (path[root] && path[root] != '/'))
        return NULL;
    path += root;
    while (*path == '/')
        path++;
    return path;
}

static MemoryFile *find(const char *name)
{
    for (int i = 0; i < FILES_MAX; i++)
        if (files[i].name[0] && strcmp(files[i].name, name) == 0)
            return &files[i];
    return NULL;
}

/* Returns NULL and sets errno if there is no free entry. */
static MemoryFile *make(const char *name)
{
    if (strlen(name) >= NAME_ROOM || !name[0]) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    for (int i = 0; i < FILES_MAX; i++)
        if (!files[i].name[0]) {
            memset(&files[i], 0, sizeof files[i]);
            strcpy(files[i].name, name);
            return &files[i];
        }
    errno = ENOSPC;
    return NULL;
}

static void drop(MemoryFile *file)
{
    free(file->own);
    memset(file, 0, sizeof *file);
}

/* True for the root, folders made by mkdir, and each parent folder of a file. */
static bool is_folder(const char *name)
{
    const MemoryFile *file = find(name);
    const size_t length = strlen(name);
    if (length == 0 || (file && file->folder))
        return true;
    for (int i = 0; i < FILES_MAX; i++)
        if (strncmp(files[i].name, name, length) == 0 && files[i].name[length] == '/')
            return true;
    return false;
}

/* Gives the file separate memory of `bytes` bytes with its previous content. */
static bool resize(MemoryFile *file, size_t bytes)
{
    unsigned char *own = realloc(file->own, bytes + 1);
    if (!own)
        return false;
    size_t kept = file->bytes < bytes ? file->bytes : bytes;
    if (!file->own && kept > 0)
        memcpy(own, file->data, kept);
    memset(own + kept, 0, bytes - kept);
    file->data = file->own = own;
    file->bytes = bytes;
    return true;
}

void fuzz_files_clear(void)
{
    for (int i = 0; i < OPENED_MAX; i++) {
        if (opened[i].stream)
            fclose(opened[i].stream);
        memset(&opened[i], 0, sizeof opened[i]);
        fuzz_expect(!mapped[i]); /* a reader must unmap what it has mapped */
    }
    for (int i = 0; i < FILES_MAX; i++)
        if (files[i].name[0])
            drop(&files[i]);
}

void fuzz_file_put(const char *name, const void *data, size_t bytes)
{
    MemoryFile *file = find(name);
    if (!file)
        file = make(name);
    fuzz_expect(file);
    free(file->own);
    file->own = NULL;
    file->data = data;
    file->bytes = bytes;
}

void fuzz_files_put_parts(const char *const *names, int count, const uint8_t *data, size_t size)
{
    static const char separator[] = "@@@@\n";
    const size_t length = sizeof separator - 1;
    fuzz_files_clear();
    for (int i = 0; i < count; i++) {
        const uint8_t *cut = i + 1 < count && size > 0 ? memmem(data, size, separator, length) : NULL;
        size_t part = cut ? (size_t)(cut - data) : size, step = cut ? part + length : part;
        fuzz_file_put(names[i], data, part);
        data += step;
        size -= step;
    }
}

void fuzz_accept(void)
{
    accepted = true;
}

bool fuzz_accepted(void)
{
    bool was = accepted;
    accepted = false;
    return was;
}

/* ---- Descriptors ---- */

/* The entry of a descriptor opened here; NULL for any other descriptor. */
static Opened *opened_of(int file)
{
    int place = file - FIRST_DESCRIPTOR;
    return place >= 0 && place < OPENED_MAX && opened[place].file ? &opened[place] : NULL;
}

static int descriptor_of(const Opened *at)
{
    return FIRST_DESCRIPTOR + (int)(at - opened);
}

/* Descriptors of folders share one entry, which is never read. */
static MemoryFile folder_entry = {.name = ".", .folder = true};

static Opened *open_name(const char *name, int flags)
{
    MemoryFile *file = find(name);
    if (is_folder(name) && !(file && !file->folder)) {
        file = &folder_entry;
        errno = EISDIR;
        if ((flags & O_ACCMODE) != O_RDONLY)
            return NULL;
    } else if (flags & O_DIRECTORY) {
        errno = file ? ENOTDIR : ENOENT;
        return NULL;
    }
    if (file && flags & O_CREAT && flags & O_EXCL) {
        errno = EEXIST;
        return NULL;
    }
    if (!file && !(flags & O_CREAT)) {
        errno = ENOENT;
        return NULL;
    }
    if (!file && !(file = make(name)))
        return NULL;
    if (flags & O_TRUNC && !resize(file, 0))
        return NULL;
    for (int i = 0; i < OPENED_MAX; i++)
        if (!opened[i].file) {
            opened[i] = (Opened){.file = file, .append = (flags & O_APPEND) != 0};
            return &opened[i];
        }
    errno = EMFILE;
    return NULL;
}

static ssize_t take(const Opened *from, void *data, size_t bytes, size_t at)
{
    const MemoryFile *file = from->file;
    if (file->folder) {
        errno = EISDIR;
        return -1;
    }
    size_t rest = at < file->bytes ? file->bytes - at : 0;
    bytes = bytes < rest ? bytes : rest;
    if (bytes > 0)
        memcpy(data, file->data + at, bytes);
    return (ssize_t)bytes;
}

static ssize_t put(Opened *to, const void *data, size_t bytes)
{
    MemoryFile *file = to->file;
    to->at = to->append ? file->bytes : to->at;
    if (to->at + bytes > file->bytes && !resize(file, to->at + bytes))
        return -1;
    if (!file->own && !resize(file, file->bytes))
        return -1;
    memcpy(file->own + to->at, data, bytes);
    to->at += bytes;
    return (ssize_t)bytes;
}

static int describe(const MemoryFile *file, bool folder, struct stat *out)
{
    memset(out, 0, sizeof *out);
    if (!file && !folder) {
        errno = ENOENT;
        return -1;
    }
    out->st_mode = folder ? S_IFDIR | 0755 : S_IFREG | 0644;
    out->st_size = folder ? 0 : (off_t)file->bytes;
    out->st_ino = file ? (ino_t)(file - files) + 1 : FILES_MAX + 1;
    return 0;
}

int __wrap_open(const char *path, int flags, ...)
{
    const char *name = name_of(path);
    if (name) {
        const Opened *at = open_name(name, flags);
        return at ? descriptor_of(at) : -1;
    }
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return __real_open(path, flags, mode);
}

int __wrap_close(int file)
{
    Opened *at = opened_of(file);
    if (!at)
        return __real_close(file);
    memset(at, 0, sizeof *at);
    return 0;
}

ssize_t __wrap_read(int file, void *data, size_t bytes)
{
    Opened *at = opened_of(file);
    if (!at)
        return __real_read(file, data, bytes);
    ssize_t got = take(at, data, bytes, at->at);
    at->at += got > 0 ? (size_t)got : 0;
    return got;
}

ssize_t __wrap_pread(int file, void *data, size_t bytes, off_t place)
{
    const Opened *at = opened_of(file);
    return at ? take(at, data, bytes, (size_t)place) : __real_pread(file, data, bytes, place);
}

ssize_t __wrap_write(int file, const void *data, size_t bytes)
{
    Opened *at = opened_of(file);
    return at ? put(at, data, bytes) : __real_write(file, data, bytes);
}

ssize_t __wrap_sendfile(int to, int from, off_t *at, size_t bytes)
{
    Opened *target = opened_of(to);
    const Opened *source = opened_of(from);
    if (!target || !source || !at)
        return __real_sendfile(to, from, at, bytes);
    size_t rest = (size_t)*at < source->file->bytes ? source->file->bytes - (size_t)*at : 0;
    bytes = bytes < rest ? bytes : rest;
    if (bytes > 0 && put(target, source->file->data + *at, bytes) < 0)
        return -1;
    *at += (off_t)bytes;
    return (ssize_t)bytes;
}

int __wrap_fstat(int file, struct stat *out)
{
    const Opened *at = opened_of(file);
    return at ? describe(at->file, at->file->folder, out) : __real_fstat(file, out);
}

int __wrap_fsync(int file)
{
    return opened_of(file) ? 0 : __real_fsync(file);
}

int __wrap_flock(int file, int operation)
{
    return opened_of(file) ? 0 : __real_flock(file, operation);
}

int __wrap_ftruncate(int file, off_t bytes)
{
    Opened *at = opened_of(file);
    return at ? (resize(at->file, (size_t)bytes) ? 0 : -1) : __real_ftruncate(file, bytes);
}

/* A mapping is a copy of exactly the file's size. */
void *__wrap_mmap(void *place, size_t bytes, int access, int flags, int file, off_t from)
{
    const Opened *at = opened_of(file);
    if (!at)
        return __real_mmap(place, bytes, access, flags, file, from);
    fuzz_expect(from == 0 && bytes == at->file->bytes);
    for (int i = 0; i < OPENED_MAX; i++)
        if (!mapped[i] && (mapped[i] = malloc(bytes))) {
            memcpy(mapped[i], at->file->data, bytes);
            return mapped[i];
        }
    errno = ENOMEM;
    return MAP_FAILED;
}

int __wrap_munmap(void *place, size_t bytes)
{
    for (int i = 0; i < OPENED_MAX; i++)
        if (place && mapped[i] == place) {
            free(place);
            mapped[i] = NULL;
            return 0;
        }
    return __real_munmap(place, bytes);
}

/* ---- Paths ---- */

int __wrap_stat(const char *path, struct stat *out)
{
    const char *name = name_of(path);
    if (!name)
        return __real_stat(path, out);
    const MemoryFile *file = find(name);
    return describe(file, is_folder(name) && !(file && !file->folder), out);
}

int __wrap_lstat(const char *path, struct stat *out)
{
    return name_of(path) ? __wrap_stat(path, out) : __real_lstat(path, out);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    const char *name = name_of(path);
    if (!name)
        return __real_mkdir(path, mode);
    if (find(name) || is_folder(name)) {
        errno = EEXIST;
        return -1;
    }
    MemoryFile *folder = make(name);
    if (folder)
        folder->folder = true;
    return folder ? 0 : -1;
}

int __wrap_unlink(const char *path)
{
    const char *name = name_of(path);
    if (!name)
        return __real_unlink(path);
    MemoryFile *file = find(name);
    if (file)
        drop(file);
    errno = ENOENT;
    return file ? 0 : -1;
}

int __wrap_rmdir(const char *path)
{
    return name_of(path) ? __wrap_unlink(path) : __real_rmdir(path);
}

int __wrap_rename(const char *from, const char *to)
{
    const char *name = name_of(from), *new_name = name_of(to);
    if (!name || !new_name)
        return __real_rename(from, to);
    MemoryFile *file = find(name), *old = find(new_name);
    if (!file || strlen(new_name) >= NAME_ROOM) {
        errno = ENOENT;
        return -1;
    }
    if (old && old != file)
        drop(old);
    memmove(file->name, new_name, strlen(new_name) + 1);
    return 0;
}

char *__wrap_realpath(const char *path, char *out)
{
    return name_of(path) ? strdup(path) : __real_realpath(path, out);
}

/* The part of a file's name that a listing of `folder` shows; false if the file is in another folder. */
static bool listed_name(const MemoryFile *file, const char *folder, char *out, size_t room)
{
    const size_t length = strlen(folder);
    const char *rest = file->name;
    if (length > 0) {
        if (strncmp(rest, folder, length) != 0 || rest[length] != '/')
            return false;
        rest += length + 1;
    }
    snprintf(out, room, "%.*s", (int)strcspn(rest, "/"), rest);
    return rest[0] != 0;
}

int __wrap_scandir(const char *path, struct dirent ***out, EntryFilter *filter, EntryOrder *order)
{
    const char *folder = name_of(path);
    if (!folder)
        return __real_scandir(path, out, filter, order);
    if (!is_folder(folder)) {
        errno = ENOENT;
        return -1;
    }
    int count = 0;
    *out = calloc(FILES_MAX, sizeof **out);
    for (int i = 0; *out && i < FILES_MAX; i++) {
        char name[NAME_ROOM];
        bool there = !listed_name(&files[i], folder, name, sizeof name);
        for (int j = 0; j < count && !there; j++)
            there = strcmp((*out)[j]->d_name, name) == 0;
        if (there || !((*out)[count] = calloc(1, sizeof ***out)))
            continue;
        strcpy((*out)[count++]->d_name, name);
    }
    if (order)
        qsort(*out, (size_t)count, sizeof **out, (int (*)(const void *, const void *))order);
    return count;
}

/* ---- Streams ---- */

static ssize_t stream_read(void *cookie, char *data, size_t bytes)
{
    Opened *at = cookie;
    ssize_t got = take(at, data, bytes, at->at);
    at->at += got > 0 ? (size_t)got : 0;
    return got;
}

static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
    ssize_t done = put(cookie, data, bytes);
    return done < 0 ? 0 : done;
}

static int stream_seek(void *cookie, off64_t *place, int from)
{
    Opened *at = cookie;
    off64_t base = from == SEEK_SET ? 0 : from == SEEK_CUR ? (off64_t)at->at : (off64_t)at->file->bytes;
    if (base + *place < 0)
        return -1;
    at->at = (size_t)(base + *place);
    *place = (off64_t)at->at;
    return 0;
}

static int stream_close(void *cookie)
{
    memset(cookie, 0, sizeof(Opened));
    return 0;
}

static FILE *stream_of(Opened *at, const char *mode)
{
    const cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    at->stream = fopencookie(at, mode, calls);
    return at->stream;
}

FILE *__wrap_fdopen(int file, const char *mode)
{
    Opened *at = opened_of(file);
    return at ? stream_of(at, mode) : __real_fdopen(file, mode);
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    const char *name = name_of(path);
    if (!name)
        return __real_fopen(path, mode);
    int flags = mode[0] == 'r'   ? O_RDONLY
                : mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC
                                 : O_RDWR | O_CREAT | O_APPEND;
    Opened *at = open_name(name, flags);
    return at ? stream_of(at, mode) : NULL;
}

int __wrap_fileno(FILE *stream)
{
    for (int i = 0; i < OPENED_MAX; i++)
        if (opened[i].stream == stream)
            return descriptor_of(&opened[i]);
    return __real_fileno(stream);
}
