/** @file
 * The configuration: defaults, then a YAML file, then `key=value` overrides.
 *
 * options.def is the one table of options. It defines the struct, the parser and all documentation of an
 * option. A YAML key is written nested (`sparse:` and below it `group: 64`) or dotted (`sparse.group:
 * 64`). */
#ifndef DSV_CONFIG_H
#define DSV_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of a text option, the final zero included. */
#define DSV_TEXT_MAX 1024
/** Bytes of an option that is one of several words, the final zero included. */
#define DSV_CHOICE_MAX 32

/** All options. Plain data without pointers: copy it freely.
 *
 * Each option of options.def is one field. The field of the key `sparse.group` is `sparse_group`: dots
 * become underscores. Integers are `int64_t`, numbers `double`, switches `bool`; texts and choices are
 * zero-terminated `char` arrays of #DSV_TEXT_MAX and #DSV_CHOICE_MAX bytes. The page "Configuration" lists
 * all keys with their units, ranges and defaults; `dsv help options` prints the same.
 *
 * Fill it with dsv_config_defaults() first. The functions below check ranges; a program that writes fields
 * itself must keep to the ranges of options.def. */
typedef struct DsvConfig {
    /** sizeof(DsvConfig) where the caller was compiled; dsv_config_defaults() sets it. Functions that take a
     * DsvConfig return DSV_E_USAGE if the library was compiled with another size. */
    size_t bytes;
/** @cond */
#define DSV_INT(key, field, initial, least, most, unit, help) int64_t field;
#define DSV_FLOAT(key, field, initial, least, most, unit, help) double field;
#define DSV_BOOL(key, field, initial, help) bool field;
#define DSV_TEXT(key, field, initial, help) char field[DSV_TEXT_MAX];
#define DSV_CHOICE(key, field, initial, choices, help) char field[DSV_CHOICE_MAX];
#include "dsv/options.def"
    /** @endcond */
} DsvConfig;

/** Returns the size of the library's DsvConfig, for callers in other languages than C: they allocate this
 * many bytes and pass the number to dsv_config_defaults_sized().
 * @return sizeof(DsvConfig) in the library */
size_t dsv_config_size(void);

/** Sets every option to its default, for a caller whose DsvConfig has `bytes` bytes. Called by the macro
 * dsv_config_defaults(). If the library's DsvConfig has another size, only DsvConfig::bytes is set, and every
 * function refuses the configuration.
 * @param config overwritten
 * @param bytes  sizeof(DsvConfig) of the caller */
void dsv_config_defaults_sized(DsvConfig *config, size_t bytes);

/** Sets every option to its default.
 * @param config (DsvConfig *) overwritten */
#define dsv_config_defaults(config) dsv_config_defaults_sized((config), sizeof(DsvConfig))

/** Reads a YAML file; the options it names replace those in `config`.
 * @param config changed on success, untouched on failure
 * @param path   a YAML file of mappings and scalars
 * @return DSV_E_NOT_FOUND; DSV_E_FORMAT if the file is not YAML; DSV_E_USAGE for an unknown key (the
 *     sentence names the key that may be meant), a wrong type, a value out of range, a key given twice, or
 *     YAML beyond mappings and scalars */
DsvStatus dsv_config_load(DsvConfig *config, const char *path);

/** Sets one option.
 * @param config     changed on success, untouched on failure
 * @param assignment "key=value"; the value is everything after the first =, blanks included
 * @return DSV_E_USAGE for an unknown key, a wrong type or a value out of range */
DsvStatus dsv_config_set(DsvConfig *config, const char *assignment);

/** Sets the options of a command line, in order, over those of a file.
 * @param config      may be changed in part on failure
 * @param assignments `count` strings "key=value"
 * @param count       may be 0
 * @return as dsv_config_set(); also DSV_E_USAGE if they change model.preset but leave sizes
 *     (model.num_layers, ...) that the file set for its own preset, because the model would then be neither
 *     of the two presets, and if they set lora_rank to 0 where the file sets another rank, because its
 *     learning rate was chosen for a LoRA */
DsvStatus dsv_config_set_all(DsvConfig *config, const char *const *assignments, size_t count);

/** Writes all options as YAML; dsv_config_load() of that file gives an equal struct.
 * @param config the options to write
 * @param path   replaced if it exists
 * @return DSV_E_IO, DSV_E_NO_MEMORY */
DsvStatus dsv_config_save(const DsvConfig *config, const char *path);

/** The description of one option. All strings are static. */
typedef struct DsvOptionInfo {
    const char *section;      /**< title of the section: "Run" */
    const char *section_text; /**< what the section is about; the same for all its options */
    const char *key;          /**< "sparse.group" */
    const char *type;         /**< "integer", "number", "true or false", "text", or the choices: "a|b|c" */
    const char *initial;      /**< the default as text */
    const char *range;        /**< "0 to 1"; "" for types without a range */
    const char *unit;         /**< "steps"; "" for none */
    const char *help;         /**< what the option does */
} DsvOptionInfo;

/** Counts the options.
 * @return the number of entries of options.def */
size_t dsv_option_count(void);

/** Returns the description of an option.
 * @param index from 0, in the order of options.def
 * @return static; NULL if `index` is dsv_option_count() or more */
const DsvOptionInfo *dsv_option_info(size_t index);

/** Explains an option name of another trainer.
 * @param name such as "learning_rate" or "--network-dim", in any case, with dashes or underscores
 * @return a static phrase: the name of that option in dsv, or why dsv has no such option; NULL if the name
 *     is not known */
const char *dsv_option_hint(const char *name);

/** Lists the names that dsv_option_hint() knows.
 * @param index from 0
 * @return static; NULL past the end */
const char *dsv_option_hint_name(size_t index);

/** Finds the name that a mistyped word most likely stands for.
 * @param word    as it was typed
 * @param name_at returns the candidate name with a given index, from 0, and NULL past the end
 * @param context handed to `name_at`
 * @return what `name_at` returned for the nearest name; NULL if no name is near enough */
const char *dsv_nearest(const char *word, const char *(*name_at)(const void *context, size_t index),
                        const void *context);

#ifdef __cplusplus
}
#endif
#endif
