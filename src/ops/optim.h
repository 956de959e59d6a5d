/* Ops over all parameters: the gradient norm, and AdamW with its moving average and low-precision weight
 * copy.
 *
 * sum_squares: *out = sum x^2, accumulated in double, in an order that does not depend on the number of
 * threads.
 *
 * adamw (Loshchilov & Hutter 2019, as torch.optim.AdamW): with g = grad * grad_scale,
 *     w -= lr weight_decay w;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *     w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
 *   then, if given, the weights' moving average and their copy in another dtype:
 *     e += (1 - ema_decay) (w - e);  copy = w
 *   The moving average e is not computed as ema_decay e + (1 - ema_decay) w, because the two rounded factors
 *   need not sum to 1. */
#ifndef DSVI_OPTIM_H
#define DSVI_OPTIM_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSumSquaresArgs {
    int64_t n;
    DsviDtype acc; /* accumulation dtype */
    const void *x; /* (n) acc */
    double *out;   /* one double, device memory, overwritten */
} DsviSumSquaresArgs;
typedef DsvStatus dsvi_sum_squares_fn(DsviStream *stream, const DsviSumSquaresArgs *args);

typedef struct DsviAdamwArgs {
    int64_t n;
    int64_t step; /* t in the formulas: 1 in the first call */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    DsviDtype acc;    /* accumulation dtype */
    const void *grad; /* (n) acc */
    void *weight;     /* (n) acc */
    void *m, *v;      /* (n) acc */
    double ema_decay;
    void *ema; /* (n) acc, or NULL */
    DsviDtype copy_dtype;
    void *copy; /* (n) copy_dtype, overwritten, or NULL */
} DsviAdamwArgs;
typedef DsvStatus dsvi_adamw_fn(DsviStream *stream, const DsviAdamwArgs *args);

dsvi_sum_squares_fn dsvi_sum_squares_ref;
dsvi_adamw_fn dsvi_adamw_ref;

#ifdef __cplusplus
}
#endif
#endif
