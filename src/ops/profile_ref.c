/* The scalar truth of the profile op.
 *
 * The smallest set of keys that holds a given mass is that of the largest p. How many they are is found
 * without sorting: halving the interval of doubles (their bits, which order as they do) around the
 * smallest p of the set. */
#include "ops/profile.h"

#include <math.h>

/* Sum of the p >= cut, and their number. */
static double mass_from(const double *p, int64_t keys, double cut, int64_t *count)
{
    double sum = 0;
    *count = 0;
    for (int64_t j = 0; j < keys; j++) {
        if (p[j] >= cut) {
            sum += p[j];
            ++*count;
        }
    }
    return sum;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Smallest number of keys whose p sum to `mass`; all of them where rounding keeps the sum below it. */
static int64_t keys_for_mass(const double *p, int64_t keys, double mass)
{
    /* Bits of 0.0, from where the mass is reached, and of the double after 1.0, from where it is not. */
    uint64_t low = 0, high = ((uint64_t)1023 << 52) + 1;
    int64_t count;
    if (mass <= 0)
        return 0;
    if (mass_from(p, keys, 0, &count) < mass)
        return keys;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (mass_from(p, keys, double_of(middle), &count) >= mass)
            low = middle;
        else
            high = middle;
    }
    double above = mass_from(p, keys, double_of(high), &count);
    return count + (int64_t)ceil((mass - above) / double_of(low));
}

size_t dsvi_profile_workspace_ref(DsvStream *stream, const DsvProfileArgs *args)
{
    (void)stream;
    return (size_t)args->keys * sizeof(double);
}

static void probabilities(const DsvProfileArgs *args, int64_t b, int64_t h, int64_t i, double *p)
{
    double largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < args->keys; j++) {
        p[j] = args->scale * dsvi_heads_dot(args->act, &args->q, i, &args->k, j, b, h, args->head_dim);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j < args->keys; j++)
        total += p[j] = exp(p[j] - largest);
    for (int64_t j = 0; j < args->keys; j++)
        p[j] /= total;
}

DsvStatus dsvi_profile_ref(DsvStream *stream, const DsvProfileArgs *args)
{
    (void)stream;
    double *p = args->workspace;
    for (int64_t n = 0; n < args->batch * args->heads * args->samples; n++) {
        int64_t b = n / args->samples / args->heads, h = n / args->samples % args->heads;
        int64_t i = args->sample[n % args->samples];
        probabilities(args, b, h, i, p);
        DsvList list = dsvi_list_of(args->lists, args->keys, b, h, i);
        int64_t length = dsvi_list_length(&list);
        double captured = 0;
        for (int64_t at = 0; at < length; at++)
            captured += p[dsvi_list_key(&list, at)];
        args->captured[n] = (float)captured;
        args->share90[n] = (float)((double)keys_for_mass(p, args->keys, args->mass) / (double)args->keys);
        args->listed[n] = (float)((double)length / (double)args->keys);
    }
    return DSV_OK;
}
