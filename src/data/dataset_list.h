/* Lists of clips: CSV with a header row, and JSON Lines. */
#ifndef DSVI_DATASET_LIST_H
#define DSVI_DATASET_LIST_H

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One row; text is NULL where the list has none. */
typedef DsvStatus dsvi_list_row_fn(void *context, const char *path, const char *text);

/* Whether the name ends like that of a list. */
bool dsvi_list_is(const char *path);

/* Calls row(context, path, text) for each row, in order; paths are as they stand there. The column or key of
 * the path is the first of path, video, file_name that is there; of the text, text, caption, prompt.
 * DSV_E_FORMAT names file and line. */
DsvStatus dsvi_list_read(const char *list, dsvi_list_row_fn *row, void *context);

#ifdef __cplusplus
}
#endif
#endif
