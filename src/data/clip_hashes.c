/* Implements clip_hashes.h. */
#include "data/clip_hashes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

enum { LINE_BYTES = 192, FIELD_BYTES = 48 };
#define FILE_BYTES_MAX ((size_t)1 << 31)

/* A source whose contents are unknown, and the key of its path. */
typedef struct Wanted {
    DsviHashKey path;
    DsviLatentSource *source;
} Wanted;

static int wanted_by_path(const void *a, const void *b)
{
    return strcmp(((const Wanted *)a)->path.hex, ((const Wanted *)b)->path.hex);
}

static DsviHashKey key_of_path(const char *path)
{
    return dsvi_hash_key_of(path, strlen(path));
}

/* Makes the line of a source, with a newline. Returns its length. */
static size_t hash_line(const DsviLatentSource *source, char line[LINE_BYTES])
{
    DsviHashKey path = key_of_path(source->path);
    int length = snprintf(line, LINE_BYTES, "%s %s %" PRIu64 " %.17g", path.hex, source->content.hex,
                          source->stamp.bytes, source->stamp.modified);
    DsviHashKey check = dsvi_hash_key_of(line, (size_t)length);
    return (size_t)length + (size_t)snprintf(line + length, LINE_BYTES - (size_t)length, " %s\n", check.hex);
}

/* Takes one line, without its newline. */
static void take_line(const char *line, Wanted *wanted, size_t count)
{
    char path[FIELD_BYTES], content[FIELD_BYTES], again[LINE_BYTES];
    Wanted key = {.source = NULL};
    DsviLatentSource read = {0};
    if (sscanf(line, "%47s %47s", path, content) != 2 || !dsvi_hash_key_read(path, &key.path))
        return;
    Wanted *found = bsearch(&key, wanted, count, sizeof key, wanted_by_path);
    if (!found || !dsvi_hash_key_read(content, &read.content))
        return;
    read.path = found->source->path;
    read.stamp = found->source->stamp;
    size_t length = hash_line(&read, again); /* the line of these contents if the stamp is that of now */
    if (strlen(line) + 1 == length && strncmp(line, again, length - 1) == 0)
        found->source->content = read.content;
}

static void take_lines(char *text, Wanted *wanted, size_t count)
{
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        take_line(line, wanted, count);
}

DsvStatus dsvi_clip_hashes_recall(const char *file, DsviLatentSource *sources, int64_t count)
{
    char *text;
    size_t bytes, unknown = 0;
    if (!dsvi_path_exists(file))
        return DSV_OK;
    DSVI_TRY(dsvi_file_read(file, FILE_BYTES_MAX, &text, &bytes));
    Wanted *wanted = calloc((size_t)count + 1, sizeof *wanted);
    if (!wanted) {
        free(text);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the hashes of %" PRId64 " clips", file, count);
    }
    for (int64_t i = 0; i < count; i++)
        if (!sources[i].content.hex[0])
            wanted[unknown++] = (Wanted){.path = key_of_path(sources[i].path), .source = &sources[i]};
    qsort(wanted, unknown, sizeof *wanted, wanted_by_path);
    take_lines(text, wanted, unknown);
    free(wanted);
    free(text);
    return DSV_OK;
}

DsvStatus dsvi_clip_hashes_append(const char *file, DsviLatentSource *const *sources, int64_t count)
{
    char line[LINE_BYTES];
    FILE *to = fopen(file, "ab");
    /* an empty line parts these lines from one that was written in part */
    bool whole = to && fseek(to, 0, SEEK_END) == 0 && (ftell(to) == 0 || fputc('\n', to) != EOF);
    for (int64_t i = 0; whole && i < count; i++) {
        if (!sources[i]->content.hex[0])
            continue;
        size_t length = hash_line(sources[i], line);
        whole = fwrite(line, 1, length, to) == length;
    }
    int error = errno;
    if (to && fclose(to) != 0 && whole) {
        error = errno;
        whole = false;
    }
    return whole
               ? DSV_OK
               : DSVI_FAIL(DSV_E_IO, "%s: the hashes of clips cannot be written: %s", file, strerror(error));
}
