/* Writes text and numbers into the page. */
#ifndef DSVI_REPORT_TEXT_H
#define DSVI_REPORT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes untrusted text: escapes the characters of HTML markup, and replaces control characters and bytes
 * that are not UTF-8 by U+FFFD. Valid in content and in attributes in double quotes. */
void dsvi_put_text(FILE *to, const char *text);

/* The functions for numbers write a decimal point in every locale, and "-" for a number that is not
 * finite. */

/* Writes `decimals` digits after the decimal point. */
void dsvi_put_fixed(FILE *to, double value, int decimals);
/* Writes about `digits` significant digits, without exponent between 1e-4 and 1e7: 0.0213, 1.43, 218. */
void dsvi_put_short(FILE *to, double value, int digits);
/* Writes at most `digits` significant digits, without zeros at the end: 0.55, 0.0001, 44.7. */
void dsvi_put_round(FILE *to, double value, int digits);
/* Writes a whole number with commas: 12,345,678. */
void dsvi_put_count(FILE *to, double value);
/* Writes two digits and a unit: "1.2 million". */
void dsvi_put_large(FILE *to, double value);
/* Writes bytes in MiB or GiB. */
void dsvi_put_bytes(FILE *to, double bytes);
/* Writes a duration: "47 s", "12 min", "3 h 20 min". */
void dsvi_put_duration(FILE *to, double seconds);
/* Writes milliseconds, from 10000 ms on seconds. */
void dsvi_put_ms(FILE *to, double ms);

void dsvi_put_base64(FILE *to, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
