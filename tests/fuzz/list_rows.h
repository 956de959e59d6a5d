/* The row callback that the harnesses of CSV and JSONL lists share. */
#ifndef DSVI_LIST_ROWS_H
#define DSVI_LIST_ROWS_H

#include <math.h>

#include "data/dataset_list.h"
#include "fuzz/fuzz.h"

/* Reads all texts to their ends. No path, no picture and no caption is empty. */
static inline DsvStatus take_row(void *context, const DsviListRow *row)
{
    size_t *bytes = (size_t *)context;
    const DsviCaptions *captions = &row->captions;
    fuzz_expect(row->path && row->path[0]);
    fuzz_expect(!row->image || row->image[0]);
    fuzz_expect(row->repeats >= 1 && row->repeats <= DSVI_REPEATS_MAX);
    fuzz_expect(row->weight > 0 && isfinite(row->weight));
    *bytes += strlen(row->path) + (row->image ? strlen(row->image) : 0);
    for (int64_t i = 0; i < captions->count; i++) {
        fuzz_expect(captions->at[i].text[0]);
        *bytes += strlen(captions->at[i].text);
    }
    return DSV_OK;
}

/* Rows together have no more bytes than the file. */
static inline int read_rows(const char *name, const uint8_t *data, size_t size)
{
    char path[64];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", FUZZ_ROOT, name);
    fuzz_files_clear();
    fuzz_file_put(name, data, size);
    if (dsvi_list_read(path, take_row, &bytes) == DSV_OK)
        fuzz_accept();
    fuzz_expect(bytes <= size);
    return 0;
}

#endif
