/* Implements caption_files.h. */
#include "data/caption_files.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/fs.h"
#include "base/utf8.h"

#define CAPTION_BYTES_MAX ((size_t)1 << 20)

static const char ENDING[] = ".txt";
enum { ENDING_BYTES = sizeof ENDING - 1 };

bool dsvi_caption_file_is(const char *name)
{
    size_t length = strlen(name);
    return length >= ENDING_BYTES && strcasecmp(name + length - ENDING_BYTES, ENDING) == 0;
}

DsvStatus dsvi_caption_files_add(DsviCaptionFiles *files, const char *path)
{
    if (files->count == files->room) {
        int64_t room = files->room ? 2 * files->room : 64;
        DsviCaptionFile *at = realloc(files->at, (size_t)room * sizeof *at);
        if (!at)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld caption files", (long long)room);
        files->at = at;
        files->room = room;
    }
    files->at[files->count] = (DsviCaptionFile){.path = strdup(path)};
    if (!files->at[files->count].path)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the path %s", path);
    files->count++;
    return DSV_OK;
}

/* A path without its ending. */
typedef struct CaptionStem {
    const char *text;
    size_t length;
} CaptionStem;

static int compare_stems(CaptionStem a, CaptionStem b)
{
    int order = memcmp(a.text, b.text, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static CaptionStem stem_of_file(const DsviCaptionFile *file)
{
    return (CaptionStem){file->path, strlen(file->path) - ENDING_BYTES};
}

/* Orders files by stem; files that differ in their endings only, by ending. */
static int by_stem(const void *a, const void *b)
{
    const DsviCaptionFile *x = a, *y = b;
    int order = compare_stems(stem_of_file(x), stem_of_file(y));
    return order ? order : strcmp(x->path, y->path);
}

void dsvi_caption_files_sort(DsviCaptionFiles *files)
{
    if (files->count > 0)
        qsort(files->at, (size_t)files->count, sizeof *files->at, by_stem);
}

static int stem_against_file(const void *key, const void *file)
{
    return compare_stems(*(const CaptionStem *)key, stem_of_file(file));
}

DsviCaptionFile *dsvi_caption_files_find(DsviCaptionFiles *files, const char *clip, size_t length)
{
    const CaptionStem key = {clip, length};
    if (files->count == 0)
        return NULL;
    DsviCaptionFile *found = bsearch(&key, files->at, (size_t)files->count, sizeof *files->at,
                                     stem_against_file);
    if (found)
        found->found = true;
    return found;
}

void dsvi_caption_files_free(DsviCaptionFiles *files)
{
    for (int64_t i = 0; i < files->count; i++)
        free(files->at[i].path);
    free(files->at);
    *files = (DsviCaptionFiles){0};
}

DsvStatus dsvi_caption_file_read(const char *path, char **text)
{
    static const char BYTE_ORDER_MARK[] = "\xef\xbb\xbf";
    size_t bytes;
    char *data;
    *text = NULL;
    DSVI_TRY(dsvi_file_read(path, CAPTION_BYTES_MAX, &data, &bytes));
    if (memchr(data, 0, bytes) || !dsvi_utf8_valid(data, bytes)) {
        free(data);
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not UTF-8, expected the text of a caption", path);
    }
    char *start = data, *end = data + bytes;
    if (strncmp(start, BYTE_ORDER_MARK, 3) == 0)
        start += 3;
    while (isspace((unsigned char)*start))
        start++;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    if (end == start) {
        free(data);
        return DSVI_FAIL(DSV_E_FORMAT, "%s: empty, expected the text of a caption", path);
    }
    memmove(data, start, (size_t)(end - start));
    data[end - start] = 0;
    *text = data;
    return DSV_OK;
}
