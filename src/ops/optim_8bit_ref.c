/* Reference implementation of AdamW with states of 8 bits, and the values of its codes. See optim.h. */
#include <math.h>
#include <stdlib.h>

#include "ops/optim.h"

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void dsvi_state_values(bool with_sign, float values[DSVI_STATE_VALUES])
{
    enum { FACTORS = 7 };
    int count = 0;
    for (int e = 0; e < FACTORS; e++) {
        int intervals = 1 << (with_sign ? 6 - e : 7 - e);
        for (int i = 0; i < intervals; i++) {
            double middle = 0.1 + 0.9 * (i + 0.5) / intervals, value = middle * pow(10, -e);
            values[count++] = (float)value;
            if (with_sign)
                values[count++] = (float)-value;
        }
    }
    values[count++] = 0;
    values[count++] = 1;
    DSVI_ASSERT(count == DSVI_STATE_VALUES);
    qsort(values, DSVI_STATE_VALUES, sizeof *values, ascending);
}

uint8_t dsvi_state_code(const float values[DSVI_STATE_VALUES], float x)
{
    int low = 0;
    for (int step = DSVI_STATE_VALUES / 2; step > 0; step /= 2)
        low += values[low + step] <= x ? step : 0;
    if (low < DSVI_STATE_VALUES - 1 && values[low + 1] - x < x - values[low])
        low++;
    return (uint8_t)low;
}

/* Stores one block of a moment: its scale and its codes. A positive number gets at least code `least`. */
static void store_block(const float values[DSVI_STATE_VALUES], int64_t count, const float *x, uint8_t least,
                        uint8_t *codes, float *scale)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    *scale = largest;
    for (int64_t i = 0; i < count; i++) {
        codes[i] = dsvi_state_code(values, largest > 0 ? x[i] / largest : 0);
        if (x[i] > 0 && codes[i] < least)
            codes[i] = least;
    }
}

DsvStatus dsvi_adamw_8bit_ref(DsviStream *stream, const DsviAdamwArgs *args)
{
    float with_sign[DSVI_STATE_VALUES], positive[DSVI_STATE_VALUES];
    float m[DSVI_STATE_BLOCK], v[DSVI_STATE_BLOCK];
    dsvi_state_values(true, with_sign);
    dsvi_state_values(false, positive);
    if (args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "adamw_8bit: takes F32, not %s", dsvi_dtype_name(args->acc));
    for (int64_t begin = 0; begin < args->n; begin += DSVI_STATE_BLOCK) {
        int64_t left = args->n - begin, count = left < DSVI_STATE_BLOCK ? left : DSVI_STATE_BLOCK;
        int64_t block = begin / DSVI_STATE_BLOCK;
        uint8_t *m_codes = (uint8_t *)args->m + begin, *v_codes = (uint8_t *)args->v + begin;
        DsviAdamwArgs part = *args;
        for (int64_t i = 0; i < count; i++) {
            m[i] = args->m_scale[block] * with_sign[m_codes[i]];
            v[i] = args->v_scale[block] * positive[v_codes[i]];
        }
        part.n = count;
        part.state_dtype = DSVI_F32;
        part.m = m;
        part.v = v;
        part.grad = (const float *)args->grad + begin;
        part.weight = (float *)args->weight + begin;
        part.ema = args->ema ? (float *)args->ema + begin : NULL;
        if (args->copy)
            part.copy = (char *)args->copy + (size_t)begin * dsvi_dtype_size(args->copy_dtype);
        DSVI_TRY(dsvi_adamw_ref(stream, &part));
        store_block(with_sign, count, m, 0, m_codes, &args->m_scale[block]);
        store_block(positive, count, v, 1, v_codes, &args->v_scale[block]);
    }
    return DSV_OK;
}
