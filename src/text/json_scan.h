/* Reads JSON text from left to right, without a tree in memory: for files with hundreds of thousands of
 * values. Errors name the file and the byte. */
#ifndef DSVI_JSON_SCAN_H
#define DSVI_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviJsonScan {
    const char *path; /* for error messages */
    char *text, *at;  /* the whole text, and what follows the values that were read */
    const char *end;  /* of the text; a zero byte must follow */
} DsviJsonScan;

/* Skips white space. Returns whether `c` follows, and if so skips it too. */
bool dsvi_json_accept(DsviJsonScan *scan, char c);
/* As dsvi_json_accept; DSV_E_FORMAT if another character follows. */
DsvStatus dsvi_json_expect(DsviJsonScan *scan, char c);
/* Reads a string and decodes its escapes in place: *string points into the text and has no terminating zero.
 * UTF-8 is not checked. */
DsvStatus dsvi_json_string(DsviJsonScan *scan, char **string, size_t *bytes);
/* Reads a number as Rust's serde_json does: all digits as an integer in double, times or divided by a power
 * of ten. The result can differ from the nearest double in the last bit. */
DsvStatus dsvi_json_number(DsviJsonScan *scan, double *number);
/* Skips any value, nested at most DSVI_JSON_DEPTH_MAX deep. */
enum { DSVI_JSON_DEPTH_MAX = 64 };
DsvStatus dsvi_json_skip(DsviJsonScan *scan);

/* A member of an object: its value is the text from `begin` to `end`, or both are NULL if there is none. */
typedef struct DsviJsonMember {
    const char *name;
    char *begin, *end;
} DsviJsonMember;

/* Reads an object and finds `count` members in it. DSV_E_FORMAT if one of these exists twice. */
DsvStatus dsvi_json_members(DsviJsonScan *scan, DsviJsonMember *members, int count);

#ifdef __cplusplus
}
#endif
#endif
