/* The rows of include/dsv/options.def as data. */
#ifndef DSVI_OPTION_TABLE_H
#define DSVI_OPTION_TABLE_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvOptionKind {
    DSV_OPTION_INT,
    DSV_OPTION_FLOAT,
    DSV_OPTION_BOOL,
    DSV_OPTION_TEXT,
    DSV_OPTION_CHOICE
} DsvOptionKind;

typedef struct DsvOption {
    DsvOptionInfo info; /* a choice's are its type */
    DsvOptionKind kind;
    size_t offset;      /* of the field in DsvConfig */
    double least, most; /* INT and FLOAT; exact, as no bound is above 2^53 */
} DsvOption;

enum {
#define DSV_INT(key, field, initial, least, most, unit, help) DSVI_OPTION_##field,
#define DSV_FLOAT(key, field, initial, least, most, unit, help) DSVI_OPTION_##field,
#define DSV_BOOL(key, field, initial, help) DSVI_OPTION_##field,
#define DSV_TEXT(key, field, initial, help) DSVI_OPTION_##field,
#define DSV_CHOICE(key, field, initial, choices, help) DSVI_OPTION_##field,
#include "dsv/options.def"
    DSVI_OPTION_COUNT
};

#define DSVI_KEY_ROOM 128 /* more than any key and its final zero take */

/* All DSVI_OPTION_COUNT options in table order. */
const DsvOption *dsvi_options(void);

/* By key; NULL when there is none. */
const DsvOption *dsvi_option_find(const char *key);
/* The first whose key begins with this group and a dot; NULL when there is no such group. */
const DsvOption *dsvi_option_of_group(const char *group);

#ifdef __cplusplus
}
#endif
#endif
