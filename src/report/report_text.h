/* Text and numbers as they go into the page. */
#ifndef DSVI_REPORT_TEXT_H
#define DSVI_REPORT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Text of any origin: what HTML would take for markup is escaped, what is no UTF-8 or no character that is
 * shown becomes U+FFFD. Fit for content and for attributes in double quotes. */
void dsvi_put_text(FILE *to, const char *text);

/* A number with a decimal point whatever the locale; "-" where it is not finite. */
void dsvi_put_fixed(FILE *to, double value, int decimals);
/* With about so many digits that matter, and no exponent between 1e-4 and 1e7: 0.0213, 1.43, 218. */
void dsvi_put_short(FILE *to, double value, int digits);
/* With at most so many digits that matter, and no zeros at the end: 0.55, 0.0001, 44.7. */
void dsvi_put_round(FILE *to, double value, int digits);
/* 12345678 as 12,345,678. */
void dsvi_put_count(FILE *to, double value);
/* 1234567 as 1.2 million. */
void dsvi_put_large(FILE *to, double value);
/* In MiB or GiB; "-" where it is not finite. */
void dsvi_put_bytes(FILE *to, double bytes);
/* "47 s", "12 min", "3 h 20 min". */
void dsvi_put_duration(FILE *to, double seconds);
/* Milliseconds, or seconds where there are many; "-" where it is not finite. */
void dsvi_put_ms(FILE *to, double ms);

void dsvi_put_base64(FILE *to, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
