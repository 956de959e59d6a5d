/* See report_axis.h. */
#include "report/report_axis.h"

#include <math.h>

#include "report/report_text.h"

/* In CSS pixels: width of a digit, space between two labels, and width of the narrowest chart that shows
 * labels of class t0, t1 and t2. */
enum { DIGIT = 7, GAP = 12, TIERS = 3 };
static const int tier_width[TIERS] = {240, 360, 640};

void dsvi_ticks_even(DsviTicks *ticks, double low, double high, int limit, bool whole)
{
    static const double factor[] = {1, 2, 5, 10};
    double span = high - low, power = pow(10, floor(log10(span / limit))), step = 10 * power;
    ticks->count = 0;
    for (int i = 3; i >= 0; i--)
        if (span / (factor[i] * power) <= limit)
            step = factor[i] * power;
    if (!(span > 0) || (whole && step < 1))
        step = 1;
    double first = ceil(low / step - 1e-9);
    for (int i = 0; i < DSVI_TICKS_MAX && (first + i) * step <= high + 1e-9 * span; i++) {
        ticks->value[ticks->count] = (first + i) * step;
        ticks->step[ticks->count++] = step;
    }
}

void dsvi_ticks_log(DsviTicks *ticks, double low, double high)
{
    static const double factor[] = {1, 2, 5};
    double decades = log10(high / low);
    int every = decades > 8 ? (int)ceil(decades / 8) : 1, factors = decades > 2.5 ? 1 : 3;
    ticks->count = 0;
    for (int e = (int)floor(log10(low)); pow(10, e) <= high; e += every)
        for (int i = 0; i < factors; i++) {
            double value = factor[i] * pow(10, e);
            if (value < low || value > high || ticks->count == DSVI_TICKS_MAX)
                continue;
            ticks->value[ticks->count] = value;
            ticks->step[ticks->count++] = pow(10, e);
        }
}

void dsvi_ticks_index(DsviTicks *ticks, int64_t count, int limit)
{
    int64_t every = (count + limit - 1) / limit;
    ticks->count = 0;
    for (int64_t i = 0; i < count; i += every) {
        ticks->value[ticks->count] = (double)i;
        ticks->step[ticks->count++] = 1;
    }
}

static void put_tick_number(FILE *to, double value, double step)
{
    if (fabs(value) >= 10000 && step >= 100 && fmod(fabs(value), 100) == 0) {
        bool millions = fabs(value) >= 1e6;
        double part = value / (millions ? 1e6 : 1e3);
        dsvi_put_fixed(to, part, part == floor(part) ? 0 : 1);
        fputc(millions ? 'M' : 'k', to);
        return;
    }
    int decimals = step > 0 && step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    if (value != 0 && (decimals > 5 || fabs(value) >= 1e7))
        dsvi_put_short(to, value, 2);
    else
        dsvi_put_fixed(to, value, decimals > 5 ? 0 : decimals);
}

void dsvi_label_y(FILE *to, double fraction, const DsviTicks *ticks, int i)
{
    fputs("<span class=\"y\" style=\"top:", to);
    dsvi_put_fixed(to, 100 * fraction, 2);
    fputs("%\">", to);
    put_tick_number(to, ticks->value[i], ticks->step[i]);
    fputs("</span>", to);
}

/* Estimates the number of characters of the longest label. */
static int label_characters(const DsviTicks *ticks)
{
    double largest = ticks->value[ticks->count - 1], step = ticks->step[ticks->count - 1];
    if (step < 1)
        return 3;
    return largest >= 10 ? (int)fmin(floor(log10(largest)) + 1, 6) : 1;
}

/* Returns the class (0 to 2) of the narrowest charts that show label i; TIERS if no chart does. A chart
 * without space for all labels shows every 2nd, 4th, 8th ... label. */
static int tier_of(const DsviTicks *ticks, int i)
{
    int shown = TIERS, every = 1, pixels = label_characters(ticks) * DIGIT + GAP;
    if (ticks->count == 1)
        return 0;
    double number = round(ticks->value[i] / (ticks->value[1] - ticks->value[0]));
    for (int tier = TIERS - 1; tier >= 0; tier--) {
        while (ticks->count * pixels > tier_width[tier] * every)
            every *= 2;
        if (fmod(number, every) != 0)
            break;
        shown = tier;
    }
    return shown;
}

void dsvi_label_x(FILE *to, double fraction, const DsviTicks *ticks, int i)
{
    int tier = tier_of(ticks, i);
    if (tier == TIERS)
        return;
    fprintf(to, "<span class=\"x t%d\" style=\"left:", tier);
    dsvi_put_fixed(to, 100 * fraction, 2);
    fputs("%\">", to);
    put_tick_number(to, ticks->value[i], ticks->step[i]);
    fputs("</span>", to);
}
