/* See number_text.h. */
#include "base/number_text.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t c_locale; /* the locale "C", never freed */
static pthread_once_t c_locale_made = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

void dsvi_number_text(double value, char text[DSVI_NUMBER_BYTES])
{
    if (!isfinite(value)) {
        strcpy(text, "null");
        return;
    }
    /* Every decimal number of up to 15 digits survives the conversion to double and back, so that 15 digits
     * are tried first; %g prints no zeros at the end. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, DSVI_NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    for (char *c = text; *c; c++)
        if (!strchr("+-0123456789e", *c))
            *c = '.';
}

bool dsvi_number_read(const char *text, double *value)
{
    char *end;
    pthread_once(&c_locale_made, make_c_locale);
    if (!text[0] || text[strspn(text, "+-.0123456789eE")])
        return false;
    *value = strtod_l(text, &end, c_locale);
    return end != text && !*end && isfinite(*value);
}

bool dsvi_number_to_whole(double value, int64_t *whole)
{
    bool is_whole = value >= 0 && value < 0x1p53 && value == floor(value);
    *whole = is_whole ? (int64_t)value : 0;
    return is_whole;
}
