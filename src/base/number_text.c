/* See number_text.h. */
#include "base/number_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
