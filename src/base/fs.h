/* Files and folders, with errors that name the path. */
#ifndef DSVI_FS_H
#define DSVI_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PATH_MAX 4096

/* "a" and "b" to "a/b". DSV_E_USAGE when it does not fit. */
DsvStatus dsvi_path_join(char out[DSVI_PATH_MAX], const char *folder, const char *name);

bool dsvi_path_exists(const char *path);
bool dsvi_path_is_folder(const char *path);
/* Whether both paths lead to the same file or folder. */
bool dsvi_path_same(const char *a, const char *b);
/* Whether `path` leads to the file or folder that `descriptor` has open: not once it was removed, moved or
 * replaced. */
bool dsvi_path_is_open_as(const char *path, int descriptor);
DsvStatus dsvi_folder_make(const char *path);        /* and its parents; fine if it is there */
/* With all in it, but nothing that its links lead to; fine if it is not there. */
DsvStatus dsvi_folder_remove(const char *path);
/* Calls fn(context, name) for each entry but . and .., in strcmp order. */
DsvStatus dsvi_folder_list(const char *path, DsvStatus (*fn)(void *context, const char *name),
                           void *context);

/* The whole file, zero-terminated behind its *bytes; free() it. Refuses files above `limit` bytes. */
DsvStatus dsvi_file_read(const char *path, size_t limit, char **out, size_t *bytes);
/* Writes the whole file and syncs it, in place. A link at `path` is an error. */
DsvStatus dsvi_file_write(const char *path, const void *data, size_t bytes);
/* The same from pieces that follow one another. */
typedef struct DsvFilePart {
    const void *data;
    size_t bytes;
} DsvFilePart;
DsvStatus dsvi_file_write_parts(const char *path, const DsvFilePart *parts, size_t count);
/* Writes path.tmp, syncs, renames over path, syncs the folder: readers see the old or the new file. A link at
 * path.tmp or `path` is removed; the file that it leads to stays as it is. */
DsvStatus dsvi_file_replace(const char *path, const void *data, size_t bytes);
/* The same with the bytes that the open file `source` has from `offset` to its end. */
DsvStatus dsvi_file_copy_from(int source, uint64_t offset, const char *path);
/* Returns when all bytes written to the file so far, by whatever descriptor, are on the disk. */
DsvStatus dsvi_file_sync(const char *path);
/* Whether a file can be put at `path` by way of path.tmp, found out by making that and removing it: for those
 * whose work would be lost if it were only found out afterwards. */
DsvStatus dsvi_file_check_place(const char *path);
/* rename() within a file system, then syncs the folder. */
DsvStatus dsvi_path_rename(const char *from, const char *to);
DsvStatus dsvi_folder_sync(const char *path);
/* Makes the file if need be and keeps it locked until `*lock` is closed or the process ends; *lock is -1 on
 * failure. DSV_E_USAGE when another process, or another call of this one, has it locked; DSV_E_UNSUPPORTED
 * where the file system has no locks. */
DsvStatus dsvi_file_lock(const char *path, int *lock);
/* Bytes of a file. */
DsvStatus dsvi_file_size(const char *path, uint64_t *bytes);
/* What tells a file that was written to from what it was. */
typedef struct DsvFileStamp {
    uint64_t bytes;
    double modified; /* seconds since 1970 */
} DsvFileStamp;
DsvStatus dsvi_file_stamp(const char *path, DsvFileStamp *stamp);
/* XXH3 64-bit checksum of a file's bytes. */
DsvStatus dsvi_file_checksum(const char *path, uint64_t *checksum);

#ifdef __cplusplus
}
#endif
#endif
