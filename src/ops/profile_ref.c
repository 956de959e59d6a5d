/* Reference implementation of profile. See profile.h.
 *
 * The smallest set of keys with a given mass consists of the keys with the largest p. Their number is found
 * without sorting: a bisection over the bit patterns of doubles, which order like the doubles themselves,
 * finds the smallest p of the set. */
#include "ops/profile.h"

#include <math.h>

/* Returns the sum of the probabilities p that are >= cut, and stores their number in *count. */
static double profile_mass_from(const double *p, int64_t keys, double cut, int64_t *count)
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

static double double_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the smallest number of keys whose probabilities p add up to `mass` or more, or the number of all
 * keys if rounding keeps the sum of all p below `mass`. */
static int64_t profile_keys_for_mass(const double *p, int64_t keys, double mass)
{
    /* Bisects for the smallest p of the set. `low` and `high` are bit patterns of doubles. All p >= low add
     * up to `mass` or more, and all p >= high to less. `low` starts at the bits of 0.0, `high` at the bits of
     * the first double after 1.0. */
    uint64_t low = 0, high = ((uint64_t)1023 << 52) + 1;
    int64_t count;
    if (mass <= 0)
        return 0;
    if (profile_mass_from(p, keys, 0, &count) < mass)
        return keys;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (profile_mass_from(p, keys, double_of_bits(middle), &count) >= mass)
            low = middle;
        else
            high = middle;
    }
    double above = profile_mass_from(p, keys, double_of_bits(high), &count);
    return count + (int64_t)ceil((mass - above) / double_of_bits(low));
}

size_t dsvi_profile_workspace_ref(DsviStream *stream, const DsviProfileArgs *args)
{
    (void)stream;
    return (size_t)args->keys * sizeof(double);
}

static void profile_probabilities(const DsviProfileArgs *args, int64_t b, int64_t h, int64_t i, double *p)
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

DsvStatus dsvi_profile_ref(DsviStream *stream, const DsviProfileArgs *args)
{
    (void)stream;
    double *p = args->workspace;
    for (int64_t n = 0; n < args->batch * args->heads * args->samples; n++) {
        int64_t b = n / args->samples / args->heads, h = n / args->samples % args->heads;
        int64_t i = args->sample[n % args->samples];
        profile_probabilities(args, b, h, i, p);
        DsviList list = dsvi_list_of(args->lists, args->keys, b, h, i);
        int64_t length = dsvi_list_length(&list);
        double captured = 0;
        for (int64_t at = 0; at < length; at++)
            captured += p[dsvi_list_key(&list, at)];
        args->captured[n] = (float)captured;
        args->share90[n] = (float)((double)profile_keys_for_mass(p, args->keys, args->mass) /
                                   (double)args->keys);
        args->listed[n] = (float)((double)length / (double)args->keys);
    }
    return DSV_OK;
}
