/* Files and folders. Error messages name the path. */
#ifndef DSVI_FS_H
#define DSVI_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PATH_MAX 4096 /* bytes of a path, the final zero included */

/* Joins "a" and "b" to "a/b". DSV_E_USAGE if the result is longer than DSVI_PATH_MAX. */
DsvStatus dsvi_path_join(char out[DSVI_PATH_MAX], const char *folder, const char *name);

bool dsvi_path_exists(const char *path);
bool dsvi_path_is_folder(const char *path);
/* Returns whether both paths name the same file or folder. */
bool dsvi_path_same(const char *a, const char *b);
/* Returns whether `path` names the file or folder that `descriptor` has open. False after it was removed,
 * moved or replaced. */
bool dsvi_path_is_open_as(const char *path, int descriptor);
/* Creates a folder and its parents. Success if the folder exists already. */
DsvStatus dsvi_folder_make(const char *path);
/* Removes a folder with its contents, or a file. Symbolic links are removed, not followed. Success if nothing
 * exists at `path`. */
DsvStatus dsvi_folder_remove(const char *path);
/* Calls fn(context, name) for each entry except . and .., in the order of strcmp, until a call fails. */
DsvStatus dsvi_folder_list(const char *path, DsvStatus (*fn)(void *context, const char *name), void *context);

/* Reads a whole file into *out, which has *bytes bytes and then a zero; the caller frees it with free().
 * DSV_E_FORMAT if the file has more than `limit` bytes. */
DsvStatus dsvi_file_read(const char *path, size_t limit, char **out, size_t *bytes);
/* Writes a whole file in place and syncs it. Fails if `path` is a symbolic link. */
DsvStatus dsvi_file_write(const char *path, const void *data, size_t bytes);
/* As dsvi_file_write, from `count` parts that are written one after the other. */
typedef struct DsviFilePart {
    const void *data;
    size_t bytes;
} DsviFilePart;
DsvStatus dsvi_file_write_parts(const char *path, const DsviFilePart *parts, size_t count);

/* The same for a caller that has the parts one at a time. dsvi_file_create opens *file (a descriptor),
 * dsvi_file_write_at writes bytes at a place of it, and dsvi_file_finish syncs it if `status` of all before
 * is DSV_OK and closes it in any case. It returns the first failure. */
DsvStatus dsvi_file_create(const char *path, int *file);
DsvStatus dsvi_file_write_at(int file, const char *path, size_t place, const void *data, size_t bytes);
DsvStatus dsvi_file_finish(int file, const char *path, DsvStatus status);
/* Replaces a file atomically: writes path.tmp, syncs it, renames it to `path` and syncs the folder. Readers
 * see the old or the new file. A symbolic link at path.tmp or `path` is replaced; its target is not
 * touched. */
DsvStatus dsvi_file_replace(const char *path, const void *data, size_t bytes);
/* As dsvi_file_replace, with the bytes from `offset` to the end of the open file `source`. */
DsvStatus dsvi_file_copy_from(int source, uint64_t offset, const char *path);
/* As dsvi_file_replace, with the bytes of the file `from`. */
DsvStatus dsvi_file_copy(const char *from, const char *to);
/* Returns when all bytes that were written to the file, through any descriptor, are on the disk. */
DsvStatus dsvi_file_sync(const char *path);
/* Checks that dsvi_file_replace could write `path`, by creating path.tmp and removing it again. Callers use
 * it before long work whose result would be lost otherwise. */
DsvStatus dsvi_file_check_writable(const char *path);
/* Renames a file or folder within one file system, then syncs the folder that contains `to`. */
DsvStatus dsvi_path_rename(const char *from, const char *to);
/* As dsvi_path_rename, but `to` may be on another file system if `from` is a file: the file is then copied,
 * and removed once the copy is safe. Folders are not moved between file systems. */
DsvStatus dsvi_path_move(const char *from, const char *to);
DsvStatus dsvi_folder_sync(const char *path);
/* Creates the file if it does not exist, and locks it until *lock is closed or the process ends. DSV_E_USAGE
 * if it is locked already, by another process or by this one; DSV_E_UNSUPPORTED if the file system has no
 * locks. *lock is -1 after a failure. */
DsvStatus dsvi_file_lock(const char *path, int *lock);
DsvStatus dsvi_file_size(const char *path, uint64_t *bytes);
/* Size and time of a file. If either differs from an earlier stamp, the file was changed. */
typedef struct DsviFileStamp {
    uint64_t bytes;
    double modified; /* seconds since 1970 */
} DsviFileStamp;
DsvStatus dsvi_file_stamp(const char *path, DsviFileStamp *stamp);
/* Computes the XXH3 64-bit checksum of a file. */
DsvStatus dsvi_file_checksum(const char *path, uint64_t *checksum);

#ifdef __cplusplus
}
#endif
#endif
