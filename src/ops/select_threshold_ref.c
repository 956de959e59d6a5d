/* Reference implementation of select_threshold. It goes through the bins of the histogram from the largest
 * estimates down, and sums each bin over the heads. */
#include "ops/select.h"

#include <math.h>

/* Returns the value of one bin of a histogram (heads, BINS), summed over the heads. */
static double bin_sum(const double *table, int64_t heads, int64_t bin)
{
    double sum = 0;
    for (int64_t h = 0; h < heads; h++)
        sum += table[h * DSVI_SELECT_BINS + bin];
    return sum;
}

/* Returns the lower edge of a bin of the histogram of estimates, rounded down to float so that every estimate
 * counted in the bin is >= the returned value. */
static float bin_edge(int64_t bin)
{
    if (bin == 0)
        return 0;
    double edge = exp2((double)bin / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES);
    float rounded = (float)edge;
    return (double)rounded > edge ? nextafterf(rounded, 0) : rounded;
}

static double table_sum(const double *table, int64_t heads)
{
    double sum = 0;
    for (int64_t bin = DSVI_SELECT_BINS - 1; bin >= 0; bin--)
        sum += bin_sum(table, heads, bin);
    return sum;
}

static double fraction_of(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

DsviThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads, double fraction)
{
    double all_count = table_sum(count, heads), all_mass = table_sum(mass, heads);
    double count_above = 0, mass_above = 0;
    for (int64_t bin = DSVI_SELECT_BINS - 1; bin > 0 && fraction < 1; bin--) {
        count_above += bin_sum(count, heads, bin);
        mass_above += bin_sum(mass, heads, bin);
        if (mass_above >= fraction * all_mass)
            return (DsviThreshold){bin_edge(bin), fraction_of(count_above, all_count),
                                   fraction_of(mass_above, all_mass)};
    }
    return (DsviThreshold){0, 1, 1};
}

/* Returns the depth below the upper edge of a bin, as a fraction of the bin's width, above which `requested`
 * of its `inside` spans lie. `above` and `below` are the counts of the next higher and next lower bin. The
 * density of spans is assumed to change linearly from edge to edge. */
static double depth_in_bin(double requested, double inside, double above, double below)
{
    double upper = above + inside, lower = inside + below, scale = 2 * inside / (upper + lower);
    upper *= scale; /* density at the edges, in spans per bin; the area between them is `inside` */
    lower *= scale;
    return 2 * requested / (upper + sqrt(upper * upper + 2 * (lower - upper) * requested));
}

DsviThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads,
                                       double fraction)
{
    double all_count = table_sum(count, heads), all_mass = table_sum(mass, heads);
    double count_above = 0, mass_above = 0;
    for (int64_t bin = DSVI_SELECT_BINS - 1; bin > 0; bin--) {
        double bin_count = bin_sum(count, heads, bin), left = fraction * all_count - count_above;
        if (bin_count > left) {
            double above = bin + 1 < DSVI_SELECT_BINS ? bin_sum(count, heads, bin + 1) : bin_count;
            double part = depth_in_bin(left, bin_count, above, bin_sum(count, heads, bin - 1));
            double octave = ((double)bin + 1 - part) / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES;
            mass_above += left / bin_count * bin_sum(mass, heads, bin);
            return (DsviThreshold){(float)exp2(octave), fraction, fraction_of(mass_above, all_mass)};
        }
        count_above += bin_count;
        mass_above += bin_sum(mass, heads, bin);
    }
    if (fraction < 1) /* bin 0 has no lower edge, so its spans cannot be selected in part */
        return (DsviThreshold){bin_edge(1), fraction_of(count_above, all_count),
                               fraction_of(mass_above, all_mass)};
    return (DsviThreshold){0, 1, 1};
}

DsvStatus dsvi_select_threshold_ref(DsviStream *stream, const DsviSelectThresholdArgs *args)
{
    const double *count = args->bin_count, *mass = args->bin_mass;
    (void)stream;
    float for_mass = dsvi_threshold_for_mass(count, mass, args->bin_heads, args->mass_fraction).value;
    float for_count = dsvi_threshold_for_count(count, mass, args->bin_heads, args->span_fraction).value;
    for (int64_t h = 0; h < args->heads; h++)
        args->threshold[h] = for_mass > for_count ? for_mass : for_count;
    return DSV_OK;
}
