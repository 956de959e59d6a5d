/* Ops over all parameters at once: gradient norm; AdamW, with moving average and the copy to compute with.
 *
 * sum_squares: *out = sum x^2, accumulated in double in an order that does not depend on the number
 *     of threads.
 * adamw (Loshchilov & Hutter 2019, as torch.optim.AdamW): with g = grad * grad_scale,
 *     w -= lr weight_decay w;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *     w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
 *   and, where they are given, the weights' moving average and their copy in another dtype:
 *     e += (1 - ema_decay) (w - e);  copy = w
 *   (in this form, for a decay and a rest that are rounded apart need not make 1) */
#ifndef DSVI_OPTIM_H
#define DSVI_OPTIM_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSumSquaresArgs {
    int64_t n;
    DsvDtype acc;
    const void *x; /* (n) acc */
    double *out;   /* one double, device memory, overwritten */
} DsvSumSquaresArgs;
typedef DsvStatus dsvi_sum_squares_fn(DsvStream *stream, const DsvSumSquaresArgs *args);

typedef struct DsvAdamwArgs {
    int64_t n;
    int64_t step; /* t, from 1 */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    DsvDtype acc;
    const void *grad; /* (n) acc */
    void *weight;     /* (n) acc */
    void *m, *v;      /* (n) acc */
    double ema_decay;
    void *ema;        /* (n) acc, or NULL */
    DsvDtype copy_dtype;
    void *copy;       /* (n) copy_dtype, overwritten, or NULL */
} DsvAdamwArgs;
typedef DsvStatus dsvi_adamw_fn(DsvStream *stream, const DsvAdamwArgs *args);

dsvi_sum_squares_fn dsvi_sum_squares_ref;
dsvi_adamw_fn dsvi_adamw_ref;

#ifdef __cplusplus
}
#endif
#endif
