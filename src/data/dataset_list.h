/* Reads lists of clips: CSV with a header row, and JSON Lines. */
#ifndef DSVI_DATASET_LIST_H
#define DSVI_DATASET_LIST_H

#include <stdbool.h>

#include "data/captions.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest number of times that an epoch uses an entry. */
enum { DSVI_REPEATS_MAX = 1000000 };

typedef struct DsviListRow {
    const char *path;
    const char *image;     /* NULL: the row names no picture */
    DsviCaptions captions; /* empty: the row has no caption */
    int64_t repeats;       /* how often an epoch uses the clip, 1 to DSVI_REPEATS_MAX */
    double weight;         /* how often an epoch uses the clip, relative to others: finite, above 0 */
} DsviListRow;

/* Receives one row, whose memory is valid during the call. */
typedef DsvStatus dsvi_list_row_fn(void *context, const DsviListRow *row);

/* Returns whether the name ends in .csv or .jsonl. */
bool dsvi_list_is(const char *path);

/* Calls row(context, row) for each row, in order; paths are passed as written. The path is the first existing
 * column or key of path, video, file_name; the captions are the first of text, caption, prompt. A row has
 * several captions if a CSV file has several columns of this name, or columns like text_2, or if a JSON value
 * is an array of strings. Empty captions are not passed. The picture is that of image. The columns or keys
 * repeats and weight may be missing or empty, and are 1 then. Fails with DSV_E_FORMAT, with file and line in
 * the message. */
DsvStatus dsvi_list_read(const char *list, dsvi_list_row_fn *row, void *context);

#ifdef __cplusplus
}
#endif
#endif
