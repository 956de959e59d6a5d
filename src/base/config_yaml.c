/* Settings from a YAML file, with libyaml: one mapping of scalars, nested or with dotted keys.
 *
 * A value's type is its setting's, whether or not it stands in quotes. No value (nothing, ~ or null) is empty
 * text; a group of settings may be empty too. Of YAML's other means none has a use here, and each is refused
 * where it stands: sequences, anchors and aliases, tags, several documents, a key that is set twice. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/config_value.h"
#include "base/fs.h"

enum { FILE_BYTES_MOST = 1 << 20 };

typedef struct Reader {
    const char *path;
    const char *text; /* the whole file */
    DsvConfig *config;
    yaml_parser_t parser;
    yaml_event_t event;
    /* The line on which this file set an option, or opened the group whose first option it is; 0: not yet. */
    size_t option_line[DSVI_OPTION_COUNT];
    size_t group_line[DSVI_OPTION_COUNT];
} Reader;

static DsvStatus fail_here(const Reader *r, const char *what)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s", r->path, r->event.start_mark.line + 1, what);
}

/* A failure that does not know its place yet. */
static DsvStatus place(const Reader *r, size_t line, DsvStatus status)
{
    return status == DSV_OK ? DSV_OK : dsvi_fail_within(status, "%s:%zu", r->path, line);
}

static DsvStatus not_yaml(const Reader *r)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", r->path);
    if (p->error == YAML_READER_ERROR) { /* it knows a byte, not a line */
        line = 1;
        for (size_t i = 0; i < p->problem_offset; i++)
            line += r->text[i] == '\n';
    }
    return DSVI_FAIL(DSV_E_FORMAT, "%s:%zu: not YAML: %s", r->path, line, p->problem ? p->problem : "?");
}

static bool has_anchor_or_tag(const yaml_event_t *event)
{
    if (event->type == YAML_SCALAR_EVENT)
        return event->data.scalar.anchor || event->data.scalar.tag;
    if (event->type == YAML_MAPPING_START_EVENT)
        return event->data.mapping_start.anchor || event->data.mapping_start.tag;
    return false; /* sequences are refused as such */
}

/* The next event; the one before is gone. */
static DsvStatus advance(Reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        memset(&r->event, 0, sizeof r->event);
        return not_yaml(r);
    }
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_here(r, "an alias has no place in settings");
    if (has_anchor_or_tag(&r->event))
        return fail_here(r, "an anchor or a tag has no place in settings");
    if (r->event.type == YAML_SCALAR_EVENT &&
        memchr(r->event.data.scalar.value, 0, r->event.data.scalar.length))
        return fail_here(r, "a zero byte has no place in settings");
    return DSV_OK;
}

static DsvStatus note_once(const Reader *r, size_t *first_line, size_t line, const char *key)
{
    if (*first_line)
        return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s stands here a second time, first on line %zu", r->path,
                         line, key, *first_line);
    *first_line = line;
    return DSV_OK;
}

static bool is_null(const yaml_event_t *event)
{
    static const char *const spelling[] = {"", "~", "null", "Null", "NULL"};
    if (event->type != YAML_SCALAR_EVENT || event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    for (size_t i = 0; i < sizeof spelling / sizeof *spelling; i++)
        if (strcmp((const char *)event->data.scalar.value, spelling[i]) == 0)
            return true;
    return false;
}

/* The current event is what stands behind the option's key. */
static DsvStatus read_option(Reader *r, const DsvOption *option, size_t line)
{
    size_t *first_line = &r->option_line[option - dsvi_options()];
    DSVI_TRY(note_once(r, first_line, line, option->info.key));
    if (r->event.type == YAML_MAPPING_START_EVENT)
        return place(r, line, dsvi_config_refuse_value(option, "a mapping"));
    if (r->event.type != YAML_SCALAR_EVENT)
        return place(r, line, dsvi_config_refuse_value(option, "a sequence"));
    const char *value = is_null(&r->event) ? "" : (const char *)r->event.data.scalar.value;
    return place(r, line, dsvi_config_set_value(r->config, option, value));
}

static DsvStatus read_mapping(Reader *r, const char *group);

/* The current event is what stands behind the key of the group that begins with this option. */
static DsvStatus read_group(Reader *r, const char *group, const DsvOption *first, size_t line)
{
    DSVI_TRY(note_once(r, &r->group_line[first - dsvi_options()], line, group));
    if (is_null(&r->event))
        return DSV_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s:%zu: %s is a group of settings, such as %s, and takes no value itself", r->path,
                         line, group, first->info.key);
    return read_mapping(r, group);
}

/* The inside of a mapping up to its end; group is "" outside all groups. No deeper than the groups there are.
 */
static DsvStatus read_mapping(Reader *r, const char *group)
{
    char key[DSVI_KEY_ROOM];
    for (;;) {
        DSVI_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return DSV_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_here(r, "a key must be a word, not a sequence or a mapping");
        /* A key that is cut is no setting's: none is so long. */
        snprintf(key, sizeof key, "%s%s%s", group, group[0] ? "." : "",
                 (const char *)r->event.data.scalar.value);
        size_t line = r->event.start_mark.line + 1;
        DSVI_TRY(advance(r));
        const DsvOption *option = dsvi_option_find(key), *first = dsvi_option_of_group(key);
        if (option)
            DSVI_TRY(read_option(r, option, line));
        else if (first)
            DSVI_TRY(read_group(r, key, first, line));
        else
            return place(r, line, dsvi_config_refuse_key(key));
    }
}

/* Stream, one document, one mapping. A file without a document (empty, or comments alone) sets nothing. */
static DsvStatus read_stream(Reader *r)
{
    DSVI_TRY(advance(r)); /* the stream's start */
    DSVI_TRY(advance(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return DSV_OK;
    DSVI_TRY(advance(r)); /* in the document */
    if (r->event.type == YAML_MAPPING_START_EVENT)
        DSVI_TRY(read_mapping(r, ""));
    else if (!is_null(&r->event))
        return fail_here(r, "wanted lines of key: value");
    DSVI_TRY(advance(r)); /* the document's end */
    DSVI_TRY(advance(r));
    return r->event.type == YAML_STREAM_END_EVENT ? DSV_OK
                                                  : fail_here(r, "a second document has no place here");
}

DsvStatus dsv_config_load(DsvConfig *config, const char *path)
{
    char *text;
    size_t bytes;
    DsvConfig loaded = *config; /* a file with a mistake changes nothing */
    Reader reader = {.path = path, .config = &loaded};
    DSVI_TRY(dsvi_file_read(path, FILE_BYTES_MOST, &text, &bytes));
    if (!yaml_parser_initialize(&reader.parser)) {
        free(text);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", path);
    }
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, bytes);
    reader.text = text;
    DsvStatus status = read_stream(&reader);
    if (status == DSV_OK)
        *config = loaded;
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    free(text);
    return status;
}
