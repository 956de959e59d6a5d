/* Ops over all parameters: the gradient norm, and the optimizers AdamW and Muon with the moving average of
 * the weights and their copy in another dtype.
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
 *   need not sum to 1.
 *   m and v are stored in state_dtype. BF16 is rounded at random (dsvi_f32_to_bf16_random), because rounding
 *   to nearest would lose every change of v below 1/256: element i of the whole array uses word i % 4 of
 *   dsvi_rng_words(rng, i / 4), its low 16 bits for m and its high 16 bits for v. The weights are computed
 *   from m and v before they are rounded.
 *   On a GPU and on all instruction sets of CPUs adamw gives the same bits, so that a run does not depend on
 *   where its state is updated. These variants compute in F32. Each operation is rounded to nearest, and no
 *   product is fused with a sum:
 *     g = grad grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + ((1-b2) g) g;
 *     w = keep w - (rate m) / (sqrt(v) root + eps);  e = e + (1 - ema_decay) (w - e)
 *   with the coefficients keep = 1 - lr weight_decay, rate = lr / (1 - b1^t), root = 1 / sqrt(1 - b2^t) and
 *   the others rounded from F64. The reference implementation computes in F64.
 *
 * adamw_8bit: the same with m and v in 8 bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
 *   Quantization"): blocks of DSVI_STATE_BLOCK elements have a scale, the block's largest |m| or v, and each
 *   element a code, the index of the nearest value in a table of 256 values from -1 to 1
 *   (dsvi_state_values). The weights are computed from m and v before they are rounded. A v above zero never
 *   gets the code of zero, for the next step divides by its root.
 *
 * muon_momentum, muon_step: the elementwise parts of Muon (Jordan et al. 2024), between which train/muon.h
 *   orthogonalises matrices:
 *     muon_momentum   g = grad * grad_scale;  m = momentum m + g;  grad = g + momentum m
 *     muon_step       w = (1 - lr weight_decay) w - rate * direction;  then e and copy as in adamw */
#ifndef DSVI_OPTIM_H
#define DSVI_OPTIM_H

#include "base/dtype.h"
#include "base/rng.h"
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
    DsviDtype acc;            /* accumulation dtype */
    const void *grad;         /* (n) acc */
    void *weight;             /* (n) acc */
    DsviDtype state_dtype;    /* adamw: acc or BF16 */
    void *m, *v;              /* (n) state_dtype; adamw_8bit: (n) codes of 8 bits */
    DsviRng rng;              /* adamw with BF16: random numbers of this step */
    int64_t first;            /* adamw with BF16: place of element 0 in the whole array, a multiple of 4 */
    float *m_scale, *v_scale; /* adamw_8bit: (n / DSVI_STATE_BLOCK, rounded up) scales of the blocks */
    double ema_decay;
    void *ema; /* (n) acc, or NULL */
    DsviDtype copy_dtype;
    void *copy; /* (n) copy_dtype, overwritten, or NULL */
} DsviAdamwArgs;
typedef DsvStatus dsvi_adamw_fn(DsviStream *stream, const DsviAdamwArgs *args);

enum { DSVI_STATE_BLOCK = 256, DSVI_STATE_VALUES = 256 };

/* Writes the values that 8 bits of optimizer state stand for, in ascending order. They are dense near zero:
 * each power of ten from 1 down to 1e-6 has half as many values as the next larger one. Of the seven bits
 * besides the sign, e leading zeros stand for the factor 10^-e. A one follows, and the other f = 6 - e bits
 * choose one of 2^f equal intervals from 0.1 to 1, of which the value is the middle. Two codes remain: 0
 * and 1. Without a sign (v), f is one larger. */
void dsvi_state_values(bool with_sign, float values[DSVI_STATE_VALUES]);
/* Returns the code of the nearest value, the lower one of two. `values` are ascending. */
uint8_t dsvi_state_code(const float values[DSVI_STATE_VALUES], float x);

typedef struct DsviMuonArgs {
    int64_t n;
    double momentum, grad_scale;   /* muon_momentum */
    double lr, weight_decay, rate; /* muon_step */
    DsviDtype acc;                 /* dtype of all arrays but `copy` */
    void *grad;                    /* (n): the gradient, replaced by the direction; muon_step reads it */
    void *m;                       /* (n), muon_momentum */
    void *weight;                  /* (n), muon_step */
    double ema_decay;
    void *ema; /* (n) or NULL, muon_step */
    DsviDtype copy_dtype;
    void *copy; /* (n) copy_dtype, overwritten, or NULL, muon_step */
} DsviMuonArgs;
typedef DsvStatus dsvi_muon_fn(DsviStream *stream, const DsviMuonArgs *args);

dsvi_sum_squares_fn dsvi_sum_squares_ref;
dsvi_adamw_fn dsvi_adamw_ref, dsvi_adamw_8bit_ref;
dsvi_muon_fn dsvi_muon_momentum_ref, dsvi_muon_step_ref;

#ifdef __cplusplus
}
#endif
#endif
