/* Converts doubles to the shortest text that gives the same double again, and text to doubles. The locale of
 * the process has no effect. */
#ifndef DSVI_NUMBER_TEXT_H
#define DSVI_NUMBER_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_NUMBER_BYTES 32 /* bytes of a buffer for any number */

/* Writes `value` with as few digits as distinguish it from other doubles, and with a decimal point. A value
 * that is not finite becomes "null", because JSON has no text for it. */
void dsvi_number_text(double value, char text[DSVI_NUMBER_BYTES]);

/* Parses `text` as a decimal number, rounded to the nearest double. Returns false if any part of the text
 * does not belong to one finite number: blanks, hexadecimal digits, inf, nan, a value above the largest
 * double. */
bool dsvi_number_read(const char *text, double *value);

/* Converts a size or count from JSON. Returns whether `value` is a whole number from 0 to 2^53 - 1;
 * otherwise, also for NaN, *whole is 0. */
bool dsvi_number_to_whole(double value, int64_t *whole);

#ifdef __cplusplus
}
#endif
#endif
