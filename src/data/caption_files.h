/* Caption files: the whole text of stem.txt is the caption of the clip stem.mp4 in the same folder. */
#ifndef DSVI_CAPTION_FILES_H
#define DSVI_CAPTION_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCaptionFile {
    char *path;
    bool found; /* dsvi_caption_files_find has returned this file */
    bool used;  /* set by the caller: the file was read and its text is a caption */
} DsviCaptionFile;

/* The text files of the folders that hold clips. All bytes 0: an empty list. */
typedef struct DsviCaptionFiles {
    DsviCaptionFile *at;
    int64_t count, room;
} DsviCaptionFiles;

/* Returns whether the name ends in .txt, in small or capital letters. */
bool dsvi_caption_file_is(const char *name);

/* Appends a file. Fails with DSV_E_NO_MEMORY. */
DsvStatus dsvi_caption_files_add(DsviCaptionFiles *files, const char *path);
/* Sorts the list for dsvi_caption_files_find. */
void dsvi_caption_files_sort(DsviCaptionFiles *files);
/* Returns the file whose path without its ending is the first `length` bytes of `clip`, or NULL. */
DsviCaptionFile *dsvi_caption_files_find(DsviCaptionFiles *files, const char *clip, size_t length);
void dsvi_caption_files_free(DsviCaptionFiles *files);

/* Reads a caption file, without the blanks around its text and without a byte order mark. *text, which the
 * caller frees, has at least one character. Fails with DSV_E_FORMAT if the file has no text, more than 1 MiB
 * or bytes that are not UTF-8. */
DsvStatus dsvi_caption_file_read(const char *path, char **text);

#ifdef __cplusplus
}
#endif
#endif
