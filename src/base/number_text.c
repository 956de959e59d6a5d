/* See number_text.h. */
#include "base/number_text.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t plain; /* "C": its decimal point is a point; lives as long as the process */
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

void dsvi_number_text(double value, char text[DSVI_NUMBER_ROOM])
{
    if (!isfinite(value)) {
        strcpy(text, "null");
        return;
    }
    /* A decimal of up to 15 digits survives a double, so %g finds it at once if there is one. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, DSVI_NUMBER_ROOM, "%.*g", digits, value);
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
    pthread_once(&made, make_plain);
    if (!text[0] || text[strspn(text, "+-.0123456789eE")])
        return false;
    *value = strtod_l(text, &end, plain);
    return end != text && !*end && isfinite(*value);
}

bool dsvi_number_whole(double value, int64_t *whole)
{
    bool is_whole = value >= 0 && value < 0x1p53 && value == floor(value);
    *whole = is_whole ? (int64_t)value : 0;
    return is_whole;
}
