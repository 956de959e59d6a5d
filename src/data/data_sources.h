/* Reads the value of data.path: one source of clips, or several with their weights. */
#ifndef DSVI_DATA_SOURCES_H
#define DSVI_DATA_SOURCES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_DATA_SOURCES_MAX = 64 };

typedef struct DsviDataSource {
    char path[DSV_TEXT_MAX]; /* a folder of clips, a list, a clip or a latent cache; it exists */
    double weight;           /* above 0: how many samples come from the source, relative to others; 0: no
                              * weight is given */
    int64_t repeats;         /* factor of the repeats of its clips, 1 or more */
} DsviDataSource;

/* Parses `text`: PATH, or PATH:WEIGHT or PATH:xREPEATS for each source, with commas between them. A text, or
 * a part between commas, that is the path of an existing file or folder is a path as it stands. Stores *count
 * sources in `sources` (DSVI_DATA_SOURCES_MAX). Fails with DSV_E_NOT_FOUND if a path does not exist, and with
 * DSV_E_USAGE if a weight is not above 0, only some sources have weights, or two paths lead to one file or
 * folder. */
DsvStatus dsvi_data_sources_parse(const char *text, DsviDataSource *sources, int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
