/* The row callback that the harnesses of CSV and JSONL lists share. */
#ifndef DSVI_LIST_ROWS_H
#define DSVI_LIST_ROWS_H

#include "data/dataset_list.h"
#include "fuzz/fuzz.h"

/* Reads both texts to their ends. A path is never empty; a caption is NULL or not empty. */
static inline DsvStatus take_row(void *context, const char *path, const char *text)
{
    size_t *bytes = (size_t *)context;
    fuzz_expect(path && path[0] && (!text || text[0]));
    *bytes += strlen(path) + (text ? strlen(text) : 0);
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
