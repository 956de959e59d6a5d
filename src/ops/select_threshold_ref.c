/* The scalar truth of select_threshold. Bins are walked from the top; sums run over the heads in each bin. */
#include "ops/select.h"

#include <math.h>

/* Sum of one bin over the heads. */
static double bin_sum(const double *table, int64_t heads, int64_t bin)
{
    double sum = 0;
    for (int64_t h = 0; h < heads; h++)
        sum += table[h * DSV_SELECT_BINS + bin];
    return sum;
}

/* Lower edge of a bin, rounded down: an estimate counted in the bin must reach it. */
static float bin_edge(int64_t bin)
{
    if (bin == 0)
        return 0;
    double edge = exp2((double)bin / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
    float rounded = (float)edge;
    return (double)rounded > edge ? nextafterf(rounded, 0) : rounded;
}

static double table_sum(const double *table, int64_t heads)
{
    double sum = 0;
    for (int64_t bin = DSV_SELECT_BINS - 1; bin >= 0; bin--)
        sum += bin_sum(table, heads, bin);
    return sum;
}

static double share_of(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

DsvThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads, double share)
{
    double all_count = table_sum(count, heads), all_mass = table_sum(mass, heads);
    double count_above = 0, mass_above = 0;
    for (int64_t bin = DSV_SELECT_BINS - 1; bin > 0 && share < 1; bin--) {
        count_above += bin_sum(count, heads, bin);
        mass_above += bin_sum(mass, heads, bin);
        if (mass_above >= share * all_mass)
            return (DsvThreshold){bin_edge(bin), share_of(count_above, all_count),
                                  share_of(mass_above, all_mass)};
    }
    return (DsvThreshold){0, 1, 1};
}

/* How far down into a bin, 0 to 1, `wanted` of its `inside` runs are met, where `above` and `below` lie in
 * the bins beside it: their density is taken to run in a straight line from edge to edge. */
static double part_of_bin(double wanted, double inside, double above, double below)
{
    double upper = above + inside, lower = inside + below, scale = 2 * inside / (upper + lower);
    upper *= scale; /* density at the edges, in runs per bin; the area between them is `inside` */
    lower *= scale;
    return 2 * wanted / (upper + sqrt(upper * upper + 2 * (lower - upper) * wanted));
}

DsvThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads, double share)
{
    double all_count = table_sum(count, heads), all_mass = table_sum(mass, heads);
    double count_above = 0, mass_above = 0;
    for (int64_t bin = DSV_SELECT_BINS - 1; bin > 0; bin--) {
        double bin_count = bin_sum(count, heads, bin), left = share * all_count - count_above;
        if (bin_count > left) {
            double above = bin + 1 < DSV_SELECT_BINS ? bin_sum(count, heads, bin + 1) : bin_count;
            double part = part_of_bin(left, bin_count, above, bin_sum(count, heads, bin - 1));
            double octave = ((double)bin + 1 - part) / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES;
            mass_above += left / bin_count * bin_sum(mass, heads, bin);
            return (DsvThreshold){(float)exp2(octave), share, share_of(mass_above, all_mass)};
        }
        count_above += bin_count;
        mass_above += bin_sum(mass, heads, bin);
    }
    if (share < 1) /* what is below the lowest edge is not told apart */
        return (DsvThreshold){bin_edge(1), share_of(count_above, all_count), share_of(mass_above, all_mass)};
    return (DsvThreshold){0, 1, 1};
}

DsvStatus dsvi_select_threshold_ref(DsvStream *stream, const DsvSelectThresholdArgs *args)
{
    const double *count = args->bin_count, *mass = args->bin_mass;
    (void)stream;
    float for_mass = dsvi_threshold_for_mass(count, mass, args->bin_heads, args->mass_share).value;
    float for_count = dsvi_threshold_for_count(count, mass, args->bin_heads, args->run_share).value;
    for (int64_t h = 0; h < args->heads; h++)
        args->threshold[h] = for_mass > for_count ? for_mass : for_count;
    return DSV_OK;
}
