/* Text as an array of Unicode code points, on which the rules that clean a prompt work. */
#ifndef DSVI_CODE_POINTS_H
#define DSVI_CODE_POINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviCodePoints {
    uint32_t *at; /* (room), of which `count` are in use */
    size_t count, room;
} DsviCodePoints;

void dsvi_code_points_free(DsviCodePoints *text);

/* Returns whether the character is white space for Python: str.isspace and \\s. */
bool dsvi_is_space(uint32_t code);

/* Makes room for `more` further code points, which dsvi_code_points_push may then add. */
DsvStatus dsvi_code_points_reserve(DsviCodePoints *text, size_t more);

static inline void dsvi_code_points_push(DsviCodePoints *text, uint32_t code)
{
    text->at[text->count++] = code;
}

/* Appends `count` code points. */
DsvStatus dsvi_code_points_append(DsviCodePoints *text, const uint32_t *codes, size_t count);

/* Appends the code points of UTF-8 text. DSV_E_FORMAT if the text is not UTF-8. */
DsvStatus dsvi_code_points_read(const char *utf8, size_t bytes, DsviCodePoints *text);

/* Returns in *utf8 the text as UTF-8 with a terminating zero; the caller frees it. */
DsvStatus dsvi_code_points_write(const DsviCodePoints *text, char **utf8);

#ifdef __cplusplus
}
#endif
#endif
