/* A double as text that reads back as the same double, and back. Neither minds the process's locale. */
#ifndef DSVI_NUMBER_TEXT_H
#define DSVI_NUMBER_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_NUMBER_ROOM 32

/* The fewest digits that tell it from its neighbours, with a decimal point whatever the locale. A value that
 * is not finite has no such text and gives "null", as JSON wants it. */
void dsvi_number_text(double value, char text[DSVI_NUMBER_ROOM]);

/* The finite decimal number that is all of `text`, rounded to nearest; false: it is none. Blanks, hexadecimal
 * digits, inf and nan make it none, and so does a value beyond every double. */
bool dsvi_number_read(const char *text, double *value);

/* `value` as a whole number from 0 to 2^53 - 1, up to where every whole number is a double: for sizes and
 * counts that JSON holds. False, also for NaN: it is none, and *whole is 0. */
bool dsvi_number_whole(double value, int64_t *whole);

#ifdef __cplusplus
}
#endif
#endif
