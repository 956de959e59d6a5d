/* Implements list_weights.h. The entry of the smallest weight repeats 1, 2, 3, ... times, until the repeats
 * of all others, rounded to whole numbers, are near enough to their proportion. */
#include "data/list_weights.h"

#include <math.h>

#include "data/dataset_list.h"

static const double TOLERANCE = 1e-3;

/* Returns the largest relative difference of an entry's rounded repeats from its exact ones, if the entry of
 * weight `least` repeats `times` times. */
static double difference(const double *weight, int64_t count, double least, int64_t times)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double exact = weight[i] / least * (double)times;
        largest = fmax(largest, fabs(round(exact) / exact - 1));
    }
    return largest;
}

DsvStatus dsvi_list_weights_apply(const double *weight, int64_t count, int64_t *repeats)
{
    double least = INFINITY, most = 0, best = INFINITY;
    int64_t times = 1;
    for (int64_t i = 0; i < count; i++) {
        least = fmin(least, weight[i]);
        most = fmax(most, weight[i]);
    }
    if (count > 0 && !(most / least <= DSVI_REPEATS_MAX))
        return DSVI_FAIL(DSV_E_USAGE,
                         "weights of single clips from %g to %g, expected at most %d times as much as the "
                         "smallest",
                         least, most, DSVI_REPEATS_MAX);
    for (int64_t k = 1; best > TOLERANCE && round(most / least * (double)k) <= DSVI_REPEATS_MAX; k++) {
        double differs = difference(weight, count, least, k);
        times = differs < best ? k : times;
        best = fmin(best, differs);
    }
    for (int64_t i = 0; i < count; i++)
        repeats[i] = (int64_t)round(weight[i] / least * (double)times);
    return DSV_OK;
}
