/* Elementwise ops of a DiT: activations, gated residuals, sums, casts. norm.h defines "act" and "acc".
 * Buffers must not overlap; a comment marks each exception, where two arguments may be the same buffer. */
#ifndef DSVI_POINTWISE_H
#define DSVI_POINTWISE_H

#include "base/dtype.h"
#include "base/rng.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* gelu_tanh(x) = x/2 (1 + tanh(u)) = x / (1 + exp(-2 u)) with 2 u = SLOPE (x + CUBIC x^3) and
 * SLOPE = 2 sqrt(2 / pi). The form without tanh is precise even if tanh(u) is near -1. */
#define DSVI_GELU_SLOPE 1.5957691216057307117597842397375
#define DSVI_GELU_CUBIC 0.044715

/* gelu_quick(x) = x / (1 + exp(-SLOPE x)). */
#define DSVI_GELU_QUICK_SLOPE 1.702

typedef enum DsviActivation { DSVI_GELU_TANH, DSVI_SILU, DSVI_GELU_ERF, DSVI_GELU_QUICK } DsviActivation;

/* activation_fwd: y = f(x).  activation_bwd: dx = dy * f'(x).
 * gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); silu(x) = x / (1 + exp(-x));
 * gelu_erf(x) = x/2 (1 + erf(x / sqrt 2)), the exact GELU; gelu_quick(x) = x / (1 + exp(-1.702 x)). */
typedef struct DsviActivationArgs {
    DsviActivation activation;
    int64_t n;
    DsviDtype dtype;
    const void *x;  /* (n) */
    void *y;        /* (n), forward only; may be x */
    const void *dy; /* (n), backward only */
    void *dx;       /* (n), backward only; may be dy */
} DsviActivationArgs;
typedef DsvStatus dsvi_activation_fn(DsviStream *stream, const DsviActivationArgs *args);

/* Tokens of each sample that an op processes. The op neither reads nor writes the rows of other tokens, and
 * its sums over tokens leave them out. */
typedef struct DsviTokenList {
    const int32_t *token; /* (count) device memory, ascending; NULL: all tokens */
    int64_t count;        /* at least 1; without `token` not read */
} DsviTokenList;

/* Returns how many of a sample's `tokens` tokens are processed. */
static inline int64_t dsvi_listed_tokens(const DsviTokenList *only, int64_t tokens)
{
    return only->token ? only->count : tokens;
}

/* Returns the row, among those of all samples' tokens, of processed row number `i`. */
static inline int64_t dsvi_listed_row(const DsviTokenList *only, int64_t tokens, int64_t i)
{
    return only->token ? i / only->count * tokens + only->token[i % only->count] : i;
}

/* gate_residual_fwd: out = x + gate * y, with one gate row per sample; out = x + y if gate is NULL.
 * gate_residual_bwd: dy = gate * dout; dgate += sum over tokens of dout * y. The gradient of x is dout
 *     itself. Optionally dy_sum += sum over samples and tokens of dy, which is the gradient of a bias added
 *     last to y; a variant may round dy to act before summing. */
typedef struct DsviGateResidualArgs {
    int64_t batch, tokens, channels;
    DsviTokenList only;
    int64_t gate_stride; /* elements from one sample's gate to the next */
    DsviDtype act, acc;  /* activation dtype, accumulation dtype */
    const void *x;       /* (B, S, C) acc; forward only */
    const void *y;       /* (B, S, C) act; backward reads it only if there is a gate */
    const void *gate;    /* (B, C) acc, rows gate_stride apart, or NULL */
    void *out;           /* (B, S, C) acc; forward only; may be x */
    const void *dout;    /* (B, S, C) acc; backward only */
    void *dy;            /* (B, S, C) act; backward only */
    void *dgate;         /* shaped like gate, added to; backward only; NULL if gate is NULL */
    void *dy_sum;        /* (C) acc, added to, or NULL; backward only */
} DsviGateResidualArgs;
typedef DsvStatus dsvi_gate_residual_fn(DsviStream *stream, const DsviGateResidualArgs *args);

/* add: y[i] = a * x[i] + b * y[i]; x and y may have different dtypes, so add is also cast, copy and scale. If
 * b == 0, y is not read. x may be y if the dtypes agree. */
typedef struct DsviAddArgs {
    int64_t n;
    double a, b;
    DsviDtype x_dtype, y_dtype;
    const void *x;
    void *y;
} DsviAddArgs;
typedef DsvStatus dsvi_add_fn(DsviStream *stream, const DsviAddArgs *args);

/* dropout: y[i] = keep(first + i) x[i] / (1 - p), or with `add` this product added to y[i]. keep(j) is 1 if
 * word j % 4 of dsvi_rng_words(rng, j / 4) is at least p 2^32, otherwise 0, so the same elements are kept
 * whatever the backend. The op is its own backward pass: dx[i] = keep(first + i) dy[i] / (1 - p). An element
 * that is dropped is 0 even if x[i] is not finite. x may be y if the dtypes agree and `add` is false. */
typedef struct DsviDropoutArgs {
    int64_t n;
    uint64_t first; /* number of element 0 among those of which `rng` chooses */
    double p;       /* probability that an element is dropped: 0 or more, below 1 */
    bool add;       /* false: y is not read */
    DsviRng rng;
    DsviDtype x_dtype, y_dtype;
    const void *x; /* (n) */
    void *y;       /* (n) */
} DsviDropoutArgs;
typedef DsvStatus dsvi_dropout_fn(DsviStream *stream, const DsviDropoutArgs *args);

/* Returns the least random word whose element is kept. */
static inline uint32_t dsvi_dropout_threshold(double p)
{
    return (uint32_t)(p * 4294967296.0);
}

/* add_rows_fwd: out[r, :] = x[r, :] + table[:], used to add the learned modulation tables of transformer
 *     blocks and output head to the projected time embedding.
 * add_rows_bwd: dtable[:] += sum over r of dout[r, :]; dx[r, :] += dout[r, :].
 * Both repeat x along a row: column i reads x[r, i % x_cols]. A table (2 C) thus adds the same C values of x
 * to each of its two parts. */
typedef struct DsviAddRowsArgs {
    int64_t rows, cols, x_cols; /* cols is a multiple of x_cols */
    DsviDtype acc;              /* accumulation dtype */
    const void *x;              /* (rows, x_cols) acc */
    const void *table;          /* (cols) acc */
    void *out;                  /* (rows, cols) acc; forward only */
    const void *dout;           /* (rows, cols) acc; backward only */
    void *dx;                   /* (rows, x_cols) acc, added to; backward only */
    void *dtable;               /* (cols) acc, added to; backward only */
} DsviAddRowsArgs;
typedef DsvStatus dsvi_add_rows_fn(DsviStream *stream, const DsviAddRowsArgs *args);

dsvi_activation_fn dsvi_activation_fwd_ref, dsvi_activation_bwd_ref;
dsvi_gate_residual_fn dsvi_gate_residual_fwd_ref, dsvi_gate_residual_bwd_ref;
dsvi_add_fn dsvi_add_ref;
dsvi_dropout_fn dsvi_dropout_ref;
dsvi_add_rows_fn dsvi_add_rows_fwd_ref, dsvi_add_rows_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
