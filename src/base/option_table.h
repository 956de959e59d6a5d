/* The table of all options: the rows of include/dsv/options.def as an array. */
#ifndef DSVI_OPTION_TABLE_H
#define DSVI_OPTION_TABLE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviOptionKind {
    DSVI_OPTION_INT,
    DSVI_OPTION_FLOAT,
    DSVI_OPTION_BOOL,
    DSVI_OPTION_TEXT,
    DSVI_OPTION_CHOICE
} DsviOptionKind;

typedef struct DsviOption {
    DsvOptionInfo info; /* info.type of a CHOICE lists its choices: "a|b|c" */
    DsviOptionKind kind;
    size_t offset;   /* of the option's field in DsvConfig, in bytes */
    double min, max; /* bounds of INT and FLOAT; no bound is above 2^53, so that INT bounds are exact */
} DsviOption;

enum {
#define DSV_INT(key, field, initial, min, max, unit, help) DSVI_OPTION_##field,
#define DSV_FLOAT(key, field, initial, min, max, unit, help) DSVI_OPTION_##field,
#define DSV_BOOL(key, field, initial, help) DSVI_OPTION_##field,
#define DSV_TEXT(key, field, initial, help) DSVI_OPTION_##field,
#define DSV_CHOICE(key, field, initial, choices, help) DSVI_OPTION_##field,
#include "dsv/options.def"
    DSVI_OPTION_COUNT
};

#define DSVI_KEY_BYTES 128 /* bytes of a buffer that is larger than any key with its final zero */

/* Returns all DSVI_OPTION_COUNT options in the order of options.def. */
const DsviOption *dsvi_options(void);

/* Returns the option with this key, or NULL. */
const DsviOption *dsvi_option_find(const char *key);
/* Returns the first option whose key begins with `group` and a dot; NULL if there is no such group. */
const DsviOption *dsvi_option_first_of_group(const char *group);

#ifdef __cplusplus
}
#endif
#endif
