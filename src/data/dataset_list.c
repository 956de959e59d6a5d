/* Implements dataset_list.h: reads lists of clips. CSV follows RFC 4180: quoted fields may contain
 * commas, line ends and doubled quotes. Both readers split the file in place. */
#include "data/dataset_list.h"

#include <inttypes.h>
#include <math.h>
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
static const char IMAGE_NAME[] = "image", REPEATS[] = "repeats", WEIGHT[] = "weight";

enum { TEXT_COLUMNS_MAX = 64 };

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

/* As name_rank, for a column of captions, whose name may end with a number: text_2. */
static int text_rank(const char *name)
{
    for (int rank = 0; rank < NAMES; rank++) {
        size_t length = strlen(TEXT_NAMES[rank]);
        if (strncasecmp(name, TEXT_NAMES[rank], length) != 0)
            continue;
        const char *rest = name + length;
        if (!*rest || (*rest == '_' && rest[1] && !rest[1 + strspn(rest + 1, "0123456789")]))
            return rank;
    }
    return NAMES;
}

/* Gives a row to the caller. Names the row if the caller fails. */
static DsvStatus pass_row(const List *list, int64_t line, const DsviListRow *row)
{
    DsvStatus status = list->row(list->context, row);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s:%" PRId64, list->path, line);
}

typedef struct Columns {
    int64_t count, path;            /* number of columns; index of the column of paths, or -1 */
    int64_t image, repeats, weight; /* indices of these columns, or -1 */
    int64_t text[TEXT_COLUMNS_MAX]; /* (texts) indices of the columns of captions, ascending */
    int texts;
} Columns;

/* Notes column number columns->count if its name has the lowest rank so far, or that rank again. */
static DsvStatus csv_note_text(const List *list, Columns *columns, const char *name, int *best)
{
    int rank = text_rank(name);
    if (rank == NAMES || rank > *best)
        return DSV_OK;
    if (rank < *best)
        columns->texts = 0;
    *best = rank;
    if (columns->texts == TEXT_COLUMNS_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s:1: more than %d columns of captions", list->path,
                         TEXT_COLUMNS_MAX);
    columns->text[columns->texts++] = columns->count;
    return DSV_OK;
}

static DsvStatus csv_header(List *list, Columns *columns)
{
    int path_rank = NAMES, best_text = NAMES;
    char found[256] = "";
    size_t used = 0;
    *columns = (Columns){.path = -1, .image = -1, .repeats = -1, .weight = -1};
    for (bool last = false; !last; columns->count++) {
        char *name;
        DSVI_TRY(csv_field(list, &name, &last));
        if (used < sizeof found)
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%.40s", used ? ", " : "", name);
        if (name_rank(name, PATH_NAMES) < path_rank) {
            path_rank = name_rank(name, PATH_NAMES);
            columns->path = columns->count;
        }
        if (columns->image < 0 && strcasecmp(name, IMAGE_NAME) == 0)
            columns->image = columns->count;
        if (columns->repeats < 0 && strcasecmp(name, REPEATS) == 0)
            columns->repeats = columns->count;
        if (columns->weight < 0 && strcasecmp(name, WEIGHT) == 0)
            columns->weight = columns->count;
        DSVI_TRY(csv_note_text(list, columns, name, &best_text));
    }
    if (columns->path < 0)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s:1: no column named path, video or file_name in the header row, "
                         "which has: %s",
                         list->path, found[0] ? found : "nothing");
    return DSV_OK;
}

static DsvStatus wrong_repeats(const List *list, int64_t line, const char *found)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is '%.40s', expected a whole number from 1 to %d",
                     list->path, line, REPEATS, found, DSVI_REPEATS_MAX);
}

/* Reads the field of repeats; an empty one changes nothing. */
static DsvStatus csv_repeats(const List *list, int64_t line, const char *field, int64_t *repeats)
{
    char *end;
    if (!field[strspn(field, " ")])
        return DSV_OK;
    long value = strtol(field, &end, 10);
    if (end == field || end[strspn(end, " ")] || value < 1 || value > DSVI_REPEATS_MAX)
        return wrong_repeats(list, line, field);
    *repeats = value;
    return DSV_OK;
}

static DsvStatus set_weight(const List *list, int64_t line, const char *found, double value, double *weight)
{
    if (!(value > 0 && isfinite(value)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is '%.40s', expected a number above 0", list->path,
                         line, WEIGHT, found);
    *weight = value;
    return DSV_OK;
}

/* Reads the field of weight; an empty one changes nothing. */
static DsvStatus csv_weight(const List *list, int64_t line, const char *field, double *weight)
{
    char *end;
    if (!field[strspn(field, " ")])
        return DSV_OK;
    double value = strtod(field, &end);
    bool number = end != field && !end[strspn(end, " ")];
    return set_weight(list, line, field, number ? value : NAN, weight);
}

/* Reads the fields of a row. Adds the captions to row->captions. */
static DsvStatus csv_row_fields(List *list, const Columns *columns, DsviListRow *row, bool *empty)
{
    int64_t line = list->line, count = 0;
    int texts = 0;
    char *field = NULL;
    for (bool last = false; !last; count++) {
        DSVI_TRY(csv_field(list, &field, &last));
        if (count == columns->path)
            row->path = field;
        if (count == columns->image && *field)
            row->image = field;
        if (count == columns->repeats)
            DSVI_TRY(csv_repeats(list, line, field, &row->repeats));
        if (count == columns->weight)
            DSVI_TRY(csv_weight(list, line, field, &row->weight));
        if (texts < columns->texts && count == columns->text[texts]) {
            texts++;
            if (*field)
                DSVI_TRY(dsvi_captions_add(&row->captions, field));
        }
    }
    *empty = count == 1 && !*field;
    if (!*empty && count != columns->count)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s:%" PRId64 ": %" PRId64 " fields, expected %" PRId64 " as in the header row",
                         list->path, line, count, columns->count);
    if (!*empty && (!row->path || !*row->path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": no path in this row", list->path, line);
    return DSV_OK;
}

static DsvStatus csv_row(List *list, const Columns *columns)
{
    DsviListRow row = {.repeats = 1, .weight = 1};
    int64_t line = list->line;
    bool empty;
    DsvStatus status = csv_row_fields(list, columns, &row, &empty);
    if (status == DSV_OK && !empty) /* an empty line is skipped */
        status = pass_row(list, line, &row);
    dsvi_captions_free(&row.captions);
    return status;
}

static DsvStatus read_csv(List *list)
{
    Columns columns;
    DSVI_TRY(csv_header(list, &columns));
    while (list->at < list->end)
        DSVI_TRY(csv_row(list, &columns));
    return DSV_OK;
}

/* Returns the value of the first of `names` that exists in the object, or NULL; null counts as missing.
 * Stores the name in *name. */
static const cJSON *json_value(const cJSON *object, const char *const names[NAMES], const char **name)
{
    for (int i = 0; i < NAMES; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, names[i]);
        *name = names[i];
        if (value && !cJSON_IsNull(value))
            return value;
    }
    return NULL;
}

/* Adds the captions of an object: a string or an array of strings. */
static DsvStatus json_captions(const List *list, const cJSON *object, DsviCaptions *captions)
{
    const char *name;
    const cJSON *value = json_value(object, TEXT_NAMES, &name);
    if (!value)
        return DSV_OK;
    for (const cJSON *one = cJSON_IsArray(value) ? value->child : value; one;
         one = cJSON_IsArray(value) ? one->next : NULL) {
        if (!cJSON_IsString(one))
            return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is neither a string nor an array of strings",
                             list->path, list->line, name);
        if (one->valuestring[0])
            DSVI_TRY(dsvi_captions_add(captions, one->valuestring));
    }
    return DSV_OK;
}

/* Reads the value of repeats; a missing one and null change nothing. */
static DsvStatus json_repeats(const List *list, const cJSON *object, int64_t *repeats)
{
    char text[64] = "no number";
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, REPEATS);
    if (!value || cJSON_IsNull(value))
        return DSV_OK;
    double number = cJSON_IsNumber(value) ? value->valuedouble : 0;
    if (cJSON_IsNumber(value))
        snprintf(text, sizeof text, "%g", number);
    if (!(number >= 1 && number <= DSVI_REPEATS_MAX) || number != (double)(int64_t)number)
        return wrong_repeats(list, list->line, text);
    *repeats = (int64_t)number;
    return DSV_OK;
}

/* Reads the value of weight; a missing one and null change nothing. */
static DsvStatus json_weight(const List *list, const cJSON *object, double *weight)
{
    char text[64] = "no number";
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, WEIGHT);
    if (!value || cJSON_IsNull(value))
        return DSV_OK;
    if (cJSON_IsNumber(value))
        snprintf(text, sizeof text, "%g", value->valuedouble);
    return set_weight(list, list->line, text, cJSON_IsNumber(value) ? value->valuedouble : NAN, weight);
}

static DsvStatus json_row(const List *list, const cJSON *object)
{
    const char *name;
    if (!cJSON_IsObject(object))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": not a JSON object", list->path, list->line);
    for (const cJSON *one = object->child; one; one = one->next)
        if (cJSON_GetObjectItemCaseSensitive(object, one->string) != one)
            return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": the key %.64s is there twice", list->path,
                             list->line, one->string);
    const cJSON *path = json_value(object, PATH_NAMES, &name);
    if (path && !cJSON_IsString(path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is not a string", list->path, list->line, name);
    if (!path || !path->valuestring[0])
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": no path, video or file_name in this object",
                         list->path, list->line);
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(object, IMAGE_NAME);
    if (image && !cJSON_IsNull(image) && !cJSON_IsString(image))
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%" PRId64 ": %s is not a string", list->path, list->line,
                         IMAGE_NAME);
    const char *picture = cJSON_GetStringValue(image);
    DsviListRow row = {
        .path = path->valuestring, .image = picture && *picture ? picture : NULL, .repeats = 1, .weight = 1};
    DSVI_TRY(json_repeats(list, object, &row.repeats));
    DSVI_TRY(json_weight(list, object, &row.weight));
    DsvStatus status = json_captions(list, object, &row.captions);
    if (status == DSV_OK)
        status = pass_row(list, list->line, &row);
    dsvi_captions_free(&row.captions);
    return status;
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
