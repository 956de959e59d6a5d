/* Reads lists of clips: CSV with a header row, and JSON Lines. */
#ifndef DSVI_DATASET_LIST_H
#define DSVI_DATASET_LIST_H

#include <stdbool.h>

#include "data/captions.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Receives one row. `image` is NULL if the row names no picture. `captions` belongs to the caller; it is
 * empty if the row has no caption. */
typedef DsvStatus dsvi_list_row_fn(void *context, const char *path, const char *image,
                                   const DsviCaptions *captions);

/* Returns whether the name ends in .csv or .jsonl. */
bool dsvi_list_is(const char *path);

/* Calls row(context, path, image, captions) for each row, in order; paths are passed as written. The path is
 * the first existing column or key of path, video, file_name; the captions are the first of text, caption,
 * prompt. A row has several captions if a CSV file has several columns of this name, or columns like text_2,
 * or if a JSON value is an array of strings. Empty captions are not passed. The picture is that of image.
 * Fails with DSV_E_FORMAT, with file and line in the message. */
DsvStatus dsvi_list_read(const char *list, dsvi_list_row_fn *row, void *context);

#ifdef __cplusplus
}
#endif
#endif
