/* Implements dataset_list.h: reads lists of clips. CSV follows RFC 4180: quoted fields may contain
 * commas, line ends and doubled quotes. Both readers split the file in place. */
#include "data/dataset_list.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

#define LIST_BYTES_MAX ((size_t)1 << 30)

enum { NAMES = 3 };
static const char *const PATH_NAMES[NAMES] = {"path", "video", "file_name"};
static const char *const TEXT_NAMES[NAMES] = {"text", "caption", "prompt"};

typedef struct List {
    const char *path;
    char *at, *end; /* the part of the file that is not read yet; *end is 0 */
    int64_t line;   /* number of the line that contains `at`, from 1 */
    dsvi_list_row_fn *row;
    void *context;
} List;

static bool dataset_list_ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcasecmp(path + length - tail, ending) == 0;
}

bool dsvi_list_is(const char *path)
{
    return dataset_list_ends_with(path, ".csv") || dataset_list_ends_with(path, ".jsonl");
}

/* Reads a quoted field; `at` points to its opening quote. The closing quote must be followed by the end of
 * the field. */
static DsvStatus csv_quoted(List *list, char **field)
{
    int64_t opened = list->line;
    bool closed = false;
    char *out = *field = ++list->at;
    while (list->at < list->end && !closed) {
        char c = *list->at++;
        if (c == '"' && *list->at != '"') {
            closed = true;
        } else {
            list->at += c == '"'; /* two quotes in a quoted field mean one quote */
            list->line += c == '\n';
            *out++ = c;
        }
    }
    if (!closed)
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": a quote is opened and never closed", list->path,
                         opened);
    list->at += list->at[0] == '\r' && list->at[1] == '\n';
    if (list->at < list->end && *list->at != ',' && *list->at != '\n')
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s:%" PRId64 ": text follows a closing quote, expected a comma or the line's end",
                         list->path, list->line);
    *out = 0;
    return DSV_OK;
}

/* Reads the next field and terminates it with 0. *last is true if the field ends its row. */
static DsvStatus csv_field(List *list, char **field, bool *last)
{
    char *close = NULL; /* end of the text of an unquoted field */
    if (*list->at == '"') {
        DSVI_TRY(csv_quoted(list, field));
    } else {
        *field = list->at;
        list->at += strcspn(list->at, ",\n");
        close = list->at;
        if (close > *field && *list->at != ',' && close[-1] == '\r')
            close--;
    }
    *last = *list->at != ',';
    list->line += *list->at == '\n';
    list->at += list->at < list->end;
    if (close)
        *close = 0;
    return DSV_OK;
}

static int name_rank(const char *name, const char *const names[NAMES])
{
    int rank = 0;
    while (rank < NAMES && strcasecmp(name, names[rank]) != 0)
        rank++;
    return rank;
}

typedef struct Columns {
    int64_t count, path, text; /* indices of columns; text is -1 if there is no caption */
} Columns;

static DsvStatus csv_header(List *list, Columns *columns)
{
    int path_rank = NAMES, text_rank = NAMES;
    char found[256] = "";
    size_t used = 0;
    *columns = (Columns){0, -1, -1};
    for (bool last = false; !last; columns->count++) {
        char *name;
        DSVI_TRY(csv_field(list, &name, &last));
        if (used < sizeof found)
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%.40s", used ? ", " : "", name);
        if (name_rank(name, PATH_NAMES) < path_rank) {
            path_rank = name_rank(name, PATH_NAMES);
            columns->path = columns->count;
        }
        if (name_rank(name, TEXT_NAMES) < text_rank) {
            text_rank = name_rank(name, TEXT_NAMES);
            columns->text = columns->count;
        }
    }
    if (columns->path < 0)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s:1: no column named path, video or file_name in the header row, "
                         "which has: %s",
                         list->path, found[0] ? found : "nothing");
    return DSV_OK;
}

static DsvStatus csv_row(List *list, const Columns *columns)
{
    int64_t line = list->line, count = 0;
    char *field = NULL, *path = NULL, *text = NULL;
    for (bool last = false; !last; count++) {
        DSVI_TRY(csv_field(list, &field, &last));
        if (count == columns->path)
            path = field;
        if (count == columns->text)
            text = field;
    }
    if (count == 1 && !*field)
        return DSV_OK; /* an empty line is skipped */
    if (count != columns->count)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s:%" PRId64 ": %" PRId64 " fields, expected %" PRId64 " as in the header row",
                         list->path, line, count, columns->count);
    if (!path || !*path)
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": no path in this row", list->path, line);
    return list->row(list->context, path, text && *text ? text : NULL);
}

static DsvStatus read_csv(List *list)
{
    Columns columns;
    DSVI_TRY(csv_header(list, &columns));
    while (list->at < list->end)
        DSVI_TRY(csv_row(list, &columns));
    return DSV_OK;
}

/* Returns in *text the string of the first of `names` that exists in the object; null counts as missing. */
static DsvStatus json_text(const List *list, const cJSON *object, const char *const names[NAMES],
                           const char **text)
{
    *text = NULL;
    for (int i = 0; i < NAMES && !*text; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, names[i]);
        if (!value || cJSON_IsNull(value))
            continue;
        if (!cJSON_IsString(value))
            return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is not a string", list->path, list->line,
                             names[i]);
        *text = value->valuestring;
    }
    return DSV_OK;
}

static DsvStatus json_row(const List *list, const cJSON *object)
{
    const char *path, *text;
    if (!cJSON_IsObject(object))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": not a JSON object", list->path, list->line);
    DSVI_TRY(json_text(list, object, PATH_NAMES, &path));
    DSVI_TRY(json_text(list, object, TEXT_NAMES, &text));
    if (!path || !*path)
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": no path, video or file_name in this object",
                         list->path, list->line);
    return list->row(list->context, path, text && *text ? text : NULL);
}

static DsvStatus read_jsonl(List *list)
{
    for (; list->at < list->end; list->line++) {
        char *line = list->at;
        list->at += strcspn(line, "\n");
        list->at += list->at < list->end;
        if (list->at[-1] == '\n')
            list->at[-1] = 0;
        if (!line[strspn(line, " \t\r")])
            continue;
        cJSON *object = cJSON_ParseWithOpts(line, NULL, true);
        DsvStatus status = json_row(list, object);
        cJSON_Delete(object);
        DSVI_TRY(status);
    }
    return DSV_OK;
}

DsvStatus dsvi_list_read(const char *path, dsvi_list_row_fn *row, void *context)
{
    static const char BYTE_ORDER_MARK[] = "\xef\xbb\xbf";
    DsvStatus status;
    char *data = NULL;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, LIST_BYTES_MAX, &data, &bytes));
    List list = {.path = path, .at = data, .end = data + bytes, .line = 1, .row = row, .context = context};
    if (memchr(data, 0, bytes)) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: holds a zero byte, expected text", path);
        goto done;
    }
    if (strncmp(data, BYTE_ORDER_MARK, 3) == 0)
        list.at += 3;
    status = dataset_list_ends_with(path, ".csv") ? read_csv(&list) : read_jsonl(&list);
    if (status != DSV_OK)
        dsvi_trail_add(__FILE__, __LINE__);
done:
    free(data);
    return status;
}
