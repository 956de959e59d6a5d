/* Settings from a YAML file, with libyaml: mappings of scalars, nested or with dotted keys.
 *
 * Booleans are true and false only: yes, no, on and off are refused, so that no value changes its meaning with
 * the reader's YAML version. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/config_value.h"
#include "base/fs.h"
#include "base/option_table.h"
#include "base/status.h"

enum { FILE_BYTES_MOST = 1 << 20, KEY_BYTES_MOST = 128, NESTING_MOST = 8, OPTIONS_MOST = 512 };

typedef struct Reader {
    const char *path;
    DsvConfig *config;
    yaml_parser_t parser;
    yaml_event_t event;
    bool seen[OPTIONS_MOST]; /* options already set by this file */
} Reader;

static DsvStatus fail_at(const Reader *r, const char *what)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s", r->path, r->event.start_mark.line + 1, what);
}

/* The next event; the one before is gone. */
static DsvStatus advance(Reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        const char *problem = r->parser.problem ? r->parser.problem : "not YAML";
        memset(&r->event, 0, sizeof r->event);
        return DSVI_FAIL(DSV_E_FORMAT, "%s:%zu: not YAML: %s", r->path, r->parser.problem_mark.line + 1, problem);
    }
    if (r->event.type == YAML_ALIAS_EVENT)
        return fail_at(r, "aliases have no place in settings");
    return DSV_OK;
}

static DsvStatus set_once(Reader *r, const char *key, size_t line)
{
    size_t count;
    const DsvOption *options = dsvi_options(&count);
    DSVI_ASSERT(count <= OPTIONS_MOST);
    if (strlen((const char *)r->event.data.scalar.value) != r->event.data.scalar.length)
        return fail_at(r, "a value has a zero byte in it");
    DsvStatus status =
        dsvi_config_set_value(r->config, key, (const char *)r->event.data.scalar.value);
    if (status != DSV_OK)
        return dsvi_fail_within(status, "%s:%zu", r->path, line);
    bool *seen = &r->seen[dsvi_option_find(key) - options];
    if (*seen)
        return DSVI_FAIL(DSV_E_USAGE, "%s:%zu: %s is set a second time", r->path, line, key);
    *seen = true;
    return DSV_OK;
}

/* The inside of a mapping up to its end; prefix is "" or "outer.". */
static DsvStatus read_mapping(Reader *r, const char *prefix, int depth)
{
    char key[KEY_BYTES_MOST];
    if (depth > NESTING_MOST)
        return fail_at(r, "settings are nested too deeply");
    for (;;) {
        DSVI_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return DSV_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, "a key must be plain text");
        size_t line = r->event.start_mark.line + 1;
        const char *name = (const char *)r->event.data.scalar.value;
        if (snprintf(key, sizeof key - 1, "%s%s", prefix, name) >= (int)sizeof key - 1)
            return fail_at(r, "a key is too long");
        DSVI_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_START_EVENT) {
            strcat(key, ".");
            DSVI_TRY(read_mapping(r, key, depth + 1));
        } else if (r->event.type == YAML_SCALAR_EVENT) {
            DSVI_TRY(set_once(r, key, line));
        } else {
            return fail_at(r, "a list has no place in settings");
        }
    }
}

/* Stream, one document, one mapping. A file without a document (empty, or comments alone) sets nothing. */
static DsvStatus read_stream(Reader *r)
{
    DSVI_TRY(advance(r)); /* the stream's start */
    DSVI_TRY(advance(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return DSV_OK;
    DSVI_TRY(advance(r));
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(r, "wanted key: value lines");
    DSVI_TRY(read_mapping(r, "", 0));
    DSVI_TRY(advance(r)); /* the document's end */
    DSVI_TRY(advance(r));
    return r->event.type == YAML_STREAM_END_EVENT ? DSV_OK : fail_at(r, "a second document has no place here");
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
    DsvStatus status = read_stream(&reader);
    if (status == DSV_OK)
        *config = loaded;
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    free(text);
    return status;
}
