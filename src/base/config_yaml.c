/* Reads a DsvConfig from a YAML file with libyaml: one mapping of scalars, nested or with dotted keys.
 *
 * The type of a value is the type of its option, with or without quotes. A missing value (nothing, ~ or null)
 * is an empty text; a group of options may be empty too. A sequence of scalars is a text with commas between
 * them, for options that are texts. Everything else in YAML is refused with its line: other sequences,
 * anchors and aliases, tags, several documents, a key that is set twice. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/config_abi.h"
#include "base/config_value.h"
#include "base/fs.h"

enum { FILE_BYTES_MAX = 1 << 20 };

typedef struct Reader {
    const char *path;
    const char *text; /* the whole file */
    DsvConfig *config;
    yaml_parser_t parser;
    yaml_event_t event;
    size_t option_line[DSVI_OPTION_COUNT]; /* line on which the file set each option; 0: not set yet */
    size_t group_line[DSVI_OPTION_COUNT];  /* by index of a group's first option: line on which the group
                                              began; 0: not read yet */
} Reader;

static DsvStatus fail_here(const Reader *r, const char *what)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s", r->path, r->event.start_mark.line + 1, what);
}

/* Puts "path:line: " before the message of a failure that does not know its line. */
static DsvStatus name_line(const Reader *r, size_t line, DsvStatus status)
{
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s:%zu", r->path, line);
}

static DsvStatus not_yaml(const Reader *r)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", r->path);
    if (p->error == YAML_READER_ERROR) { /* this error has a byte offset and no line */
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
    return false; /* a sequence is refused elsewhere, with or without an anchor */
}

/* Replaces r->event by the next event of the file. */
static DsvStatus advance(Reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        memset(&r->event, 0, sizeof r->event);
        return not_yaml(r);
    }
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_here(r, "YAML aliases are not supported");
    if (has_anchor_or_tag(&r->event))
        return fail_here(r, "YAML anchors and tags are not supported");
    if (r->event.type == YAML_SCALAR_EVENT &&
        memchr(r->event.data.scalar.value, 0, r->event.data.scalar.length))
        return fail_here(r, "a zero byte in a value or key");
    return DSV_OK;
}

static DsvStatus note_line(const Reader *r, size_t *first_line, size_t line, const char *key)
{
    if (*first_line)
        return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s is set a second time, first on line %zu", r->path, line,
                         key, *first_line);
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

/* Reads a sequence of scalars into `text`, with commas between them. r->event is the event at its start. */
static DsvStatus read_sequence(Reader *r, const DsviOption *option, size_t line, char text[DSV_TEXT_MAX])
{
    size_t used = 0;
    text[0] = 0;
    for (;;) {
        DSVI_TRY(advance(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return DSV_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return name_line(r, line,
                             dsvi_config_refuse_value(option, "a sequence that is no list of words"));
        used += (size_t)snprintf(text + used, DSV_TEXT_MAX - used, "%s%s", used ? "," : "",
                                 (const char *)r->event.data.scalar.value);
        if (used >= DSV_TEXT_MAX)
            return name_line(r, line, dsvi_config_refuse_value(option, "a sequence that is too long"));
    }
}

/* Reads the option's value. r->event is the event after the option's key, which is on `line`. */
static DsvStatus read_option(Reader *r, const DsviOption *option, size_t line)
{
    size_t *first_line = &r->option_line[option - dsvi_options()];
    DSVI_TRY(note_line(r, first_line, line, option->info.key));
    if (r->event.type == YAML_MAPPING_START_EVENT)
        return name_line(r, line, dsvi_config_refuse_value(option, "a mapping"));
    if (r->event.type == YAML_SEQUENCE_START_EVENT && option->kind == DSVI_OPTION_TEXT) {
        char text[DSV_TEXT_MAX];
        DSVI_TRY(read_sequence(r, option, line, text));
        return name_line(r, line, dsvi_config_set_value(r->config, option, text));
    }
    if (r->event.type != YAML_SCALAR_EVENT)
        return name_line(r, line, dsvi_config_refuse_value(option, "a sequence"));
    const char *value = is_null(&r->event) ? "" : (const char *)r->event.data.scalar.value;
    return name_line(r, line, dsvi_config_set_value(r->config, option, value));
}

static DsvStatus read_mapping(Reader *r, const char *group);

/* Reads a group of options. r->event is the event after the group's key, which is on `line`; `first` is the
 * first option of the group. */
static DsvStatus read_group(Reader *r, const char *group, const DsviOption *first, size_t line)
{
    DSVI_TRY(note_line(r, &r->group_line[first - dsvi_options()], line, group));
    if (is_null(&r->event))
        return DSV_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s:%zu: %s is a group of options, such as %s, and takes no value itself", r->path,
                         line, group, first->info.key);
    return read_mapping(r, group);
}

/* Reads a mapping from the event after its start to its end. `group` is "" for the outermost mapping. The
 * recursion is as deep as groups are nested in options.def, because an unknown key ends the reading. */
static DsvStatus read_mapping(Reader *r, const char *group)
{
    char key[DSVI_KEY_BYTES];
    for (;;) {
        DSVI_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return DSV_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_here(r, "a key must be a word, not a sequence or a mapping");
        /* A key that is longer than the buffer matches no option, truncated or not. */
        snprintf(key, sizeof key, "%s%s%s", group, group[0] ? "." : "",
                 (const char *)r->event.data.scalar.value);
        size_t line = r->event.start_mark.line + 1;
        DSVI_TRY(advance(r));
        const DsviOption *option = dsvi_option_find(key), *first = dsvi_option_first_of_group(key);
        if (option)
            DSVI_TRY(read_option(r, option, line));
        else if (first)
            DSVI_TRY(read_group(r, key, first, line));
        else
            return name_line(r, line, dsvi_config_refuse_key(key));
    }
}

/* Reads a stream of one document with one mapping. A file without a document (empty, or only comments) sets
 * no option. */
static DsvStatus read_stream(Reader *r)
{
    DSVI_TRY(advance(r)); /* start of the stream */
    DSVI_TRY(advance(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return DSV_OK;
    DSVI_TRY(advance(r)); /* first event in the document */
    if (r->event.type == YAML_MAPPING_START_EVENT)
        DSVI_TRY(read_mapping(r, ""));
    else if (!is_null(&r->event))
        return fail_here(r, "expected lines of key: value");
    DSVI_TRY(advance(r)); /* end of the document */
    DSVI_TRY(advance(r));
    return r->event.type == YAML_STREAM_END_EVENT ? DSV_OK
                                                  : fail_here(r, "a second YAML document is not supported");
}

DsvStatus dsv_config_load(DsvConfig *config, const char *path)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    char *text;
    size_t bytes;
    DsvConfig loaded = *config; /* a failure must leave *config unchanged */
    Reader reader = {.path = path, .config = &loaded};
    DSVI_TRY(dsvi_file_read(path, FILE_BYTES_MAX, &text, &bytes));
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
