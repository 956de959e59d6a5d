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
    DsvOptionInfo info;
    DsvOptionKind kind;
    size_t offset;        /* of the field in DsvConfig */
    double least, most;   /* INT and FLOAT; exact, as no bound is above 2^53 */
    const char *choices;  /* CHOICE: "a|b|c" */
} DsvOption;

#define DSVI_KEY_ROOM 128 /* more than any key, its final zero included, takes */

enum { DSVI_OPTIONS_MOST = 512 }; /* no fewer than there are */

/* All options in table order; *count is their number. */
const DsvOption *dsvi_options(size_t *count);

/* By key; NULL when there is none. */
const DsvOption *dsvi_option_find(const char *key);
/* The first whose key begins with this group and a dot; NULL when there is no such group. */
const DsvOption *dsvi_option_of_group(const char *group);
/* The key most like this one: for the sentence about an unknown key. */
const char *dsvi_option_nearest(const char *key);

#ifdef __cplusplus
}
#endif
#endif
