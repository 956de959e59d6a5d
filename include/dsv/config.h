/* Settings: defaults, a YAML file, key=value overrides, in that order.
 *
 * The struct and everything said about a setting come from options.def. A DsvConfig is plain data: copy
 * it freely. YAML keys are written nested (`sparse:` / `  group: 64`) or dotted (`sparse.group: 64`). */
#ifndef DSV_CONFIG_H
#define DSV_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSV_TEXT_MAX 1024  /* bytes of a text setting, the final zero included */
#define DSV_CHOICE_MAX 32

typedef struct DsvConfig {
#define DSV_INT(key, field, initial, least, most, unit, help) int64_t field;
#define DSV_FLOAT(key, field, initial, least, most, unit, help) double field;
#define DSV_BOOL(key, field, initial, help) bool field;
#define DSV_TEXT(key, field, initial, help) char field[DSV_TEXT_MAX];
#define DSV_CHOICE(key, field, initial, choices, help) char field[DSV_CHOICE_MAX];
#include "dsv/options.def"
} DsvConfig;

/* Every setting at its default. */
void dsv_config_defaults(DsvConfig *config);

/* Settings named in the YAML file replace those in `config`. DSV_E_NOT_FOUND, DSV_E_FORMAT (not YAML),
 * DSV_E_USAGE (unknown key, with the one that may be meant; wrong type; out of range; a key twice; YAML
 * beyond mappings and scalars). A failure leaves `config` as it was. */
DsvStatus dsv_config_load(DsvConfig *config, const char *path);

/* One "key=value"; the value is all behind the first =, as it stands. Same errors. */
DsvStatus dsv_config_set(DsvConfig *config, const char *assignment);

/* The "key=value" arguments of a command line, in order, over the settings of a file. Same errors; and
 * DSV_E_USAGE where they change model.preset but leave sizes (model.num_layers, ...) that the file set for
 * its own preset: the model would be neither. */
DsvStatus dsv_config_set_all(DsvConfig *config, const char *const *assignments, size_t count);

/* Writes all settings as YAML, so that dsv_config_load gives the same struct back. */
DsvStatus dsv_config_save(const DsvConfig *config, const char *path);

/* One setting, for help and documentation. */
typedef struct DsvOptionInfo {
    const char *section;      /* title; section_text is the same for all its options */
    const char *section_text;
    const char *key;
    const char *type;         /* "integer", "number", "true or false", "text", or the choices: "a|b|c" */
    const char *initial;      /* default as text */
    const char *range;        /* "0 to 1", or "" */
    const char *unit;
    const char *help;
} DsvOptionInfo;

size_t dsv_option_count(void);
/* The options in table order; NULL past the end. */
const DsvOptionInfo *dsv_option_info(size_t index);

/* About an option name of another trainer (learning_rate, --network-dim), in any spelling: "dsv calls it lr",
 * or why dsv has no such option. NULL: not known. The names that are known; NULL past the end. */
const char *dsv_option_hint(const char *name);
const char *dsv_option_hint_name(size_t index);

/* The name most like `word` among name_at(context, 0), name_at(context, 1), ... up to NULL; NULL when `word`
 * is a slip of none of them. */
const char *dsv_nearest(const char *word, const char *(*name_at)(const void *context, size_t index),
                        const void *context);

#ifdef __cplusplus
}
#endif
#endif
