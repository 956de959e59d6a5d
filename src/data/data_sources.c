/* Implements data_sources.h. */
#include "data/data_sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/number_text.h"
#include "data/dataset_list.h"

/* Reads what follows the colon of `part`: a weight, or repeats. */
static DsvStatus read_weight(const char *part, const char *text, DsviDataSource *source)
{
    double number;
    bool repeats = text[0] == 'x';
    bool is_number = dsvi_number_read(text + repeats, &number);
    if (repeats && is_number && number >= 1 && number <= DSVI_REPEATS_MAX &&
        number == (double)(int64_t)number) {
        source->repeats = (int64_t)number;
        return DSV_OK;
    }
    if (repeats)
        return DSVI_FAIL(DSV_E_USAGE, "%s: repeats are '%s', expected x and a whole number from 1 to %d",
                         part, text, DSVI_REPEATS_MAX);
    if (!is_number || !(number > 0))
        return DSVI_FAIL(DSV_E_USAGE, "%s: the weight is '%s', expected a number above 0", part, text);
    source->weight = number;
    return DSV_OK;
}

/* Parses one source. */
static DsvStatus read_part(const char *part, DsviDataSource *source)
{
    const char *colon = strrchr(part, ':');
    *source = (DsviDataSource){.repeats = 1};
    snprintf(source->path, sizeof source->path, "%s", part);
    if (!part[0])
        return DSVI_FAIL(DSV_E_USAGE, "a source of the list is empty, expected a path between two commas");
    if (dsvi_path_exists(part))
        return DSV_OK;
    if (colon)
        source->path[colon - part] = 0;
    if (!colon || !source->path[0] || !dsvi_path_exists(source->path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such file or folder", part);
    return read_weight(part, colon + 1, source);
}

/* Returns whether two paths lead to one file or folder, whatever their spelling. */
static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* Fails if some sources have weights and others have none or repeats, or two are one file or folder. */
static DsvStatus check_together(const DsviDataSource *sources, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        const DsviDataSource *first = &sources[0], *other = &sources[i];
        if ((first->weight > 0) != (other->weight > 0))
            return DSVI_FAIL(DSV_E_USAGE,
                             "%s has a weight and %s has none, expected weights for all sources "
                             "or for none",
                             (first->weight > 0 ? first : other)->path,
                             (first->weight > 0 ? other : first)->path);
        for (int64_t k = 0; k < i; k++)
            if (same_file(sources[k].path, other->path))
                return DSVI_FAIL(DSV_E_USAGE, "%s and %s are the same source, expected each source once",
                                 sources[k].path, other->path);
    }
    return DSV_OK;
}

DsvStatus dsvi_data_sources_parse(const char *text, DsviDataSource *sources, int64_t *count)
{
    *count = 0;
    if (!text[0])
        return DSVI_FAIL(DSV_E_USAGE, "data.path is empty, expected a folder of clips, a list or a cache");
    if (strlen(text) >= DSV_TEXT_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: longer than %d bytes", text, DSV_TEXT_MAX - 1);
    if (dsvi_path_exists(text)) {
        *count = 1;
        return read_part(text, &sources[0]);
    }
    for (const char *at = text; at; (*count)++) {
        char part[DSV_TEXT_MAX];
        at += strspn(at, " ");
        size_t length = strcspn(at, ",");
        if (*count == DSVI_DATA_SOURCES_MAX)
            return DSVI_FAIL(DSV_E_USAGE, "%.64s...: more than %d sources", text, DSVI_DATA_SOURCES_MAX);
        size_t end = length;
        while (end > 0 && at[end - 1] == ' ')
            end--;
        snprintf(part, sizeof part, "%.*s", (int)end, at);
        DSVI_TRY(read_part(part, &sources[*count]));
        at = at[length] ? at + length + 1 : NULL;
    }
    return check_together(sources, *count);
}
