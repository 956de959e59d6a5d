/* Elementwise ops of a DiT: activations, gated residuals, sums, casts. "act" and "acc" as in norm.h.
 * Buffers may be the same where a comment says so, else they must not overlap. */
#ifndef DSVI_POINTWISE_H
#define DSVI_POINTWISE_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvActivation { DSV_GELU_TANH, DSV_SILU } DsvActivation;

/* activation_fwd: y = f(x).  activation_bwd: dx = dy * f'(x).
 * gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); silu(x) = x / (1 + exp(-x)). */
typedef struct DsvActivationArgs {
    DsvActivation activation;
    int64_t n;
    DsvDtype dtype;
    const void *x;   /* (n) */
    void *y;         /* (n), forward only; may be x */
    const void *dy;  /* (n), backward only */
    void *dx;        /* (n), backward only; may be dy */
} DsvActivationArgs;
typedef DsvStatus dsvi_activation_fn(DsvStream *stream, const DsvActivationArgs *args);

/* gate_residual_fwd: out = x + gate * y, the gate one row per sample; gate NULL: out = x + y.
 * gate_residual_bwd: dy = gate * dout; dgate += sum over tokens of dout * y. (dx is dout itself.) The
 *     gradient of a bias that y ends with can be asked for at once: dy_sum += sum over samples and tokens of
 *     dy, which a variant may round to act before it is added. */
typedef struct DsvGateResidualArgs {
    int64_t batch, tokens, channels;
    int64_t gate_stride; /* elements from one sample's gate to the next */
    DsvDtype act, acc;
    const void *x;       /* (B, S, C) acc; forward only */
    const void *y;       /* (B, S, C) act; backward: only needed when there is a gate */
    const void *gate;    /* (B, C) acc, rows gate_stride apart, or NULL */
    void *out;           /* (B, S, C) acc; forward only; may be x */
    const void *dout;    /* (B, S, C) acc; backward only */
    void *dy;            /* (B, S, C) act; backward only */
    void *dgate;         /* as gate, added to; backward only; NULL when gate is */
    void *dy_sum;        /* (C) acc, added to, or NULL; backward only */
} DsvGateResidualArgs;
typedef DsvStatus dsvi_gate_residual_fn(DsvStream *stream, const DsvGateResidualArgs *args);

/* add: y[i] = a * x[i] + b * y[i], dtypes of x and y free (this is also cast, copy and scale). With
 * b == 0, y is not read. x may be y when the dtypes agree. */
typedef struct DsvAddArgs {
    int64_t n;
    double a, b;
    DsvDtype x_dtype, y_dtype;
    const void *x;
    void *y;
} DsvAddArgs;
typedef DsvStatus dsvi_add_fn(DsvStream *stream, const DsvAddArgs *args);

/* add_rows_fwd: out[r, :] = x[r, :] + table[:]     (modulation tables of blocks and head)
 * add_rows_bwd: dtable[:] += sum over r of dout[r, :]; dx[r, :] += dout[r, :].
 * x is repeated: row r reads x[r, i % x_cols], so a (2, C) table adds a (C) vector to both rows. */
typedef struct DsvAddRowsArgs {
    int64_t rows, cols, x_cols; /* cols is a multiple of x_cols */
    DsvDtype acc;
    const void *x;     /* (rows, x_cols) acc */
    const void *table; /* (cols) acc */
    void *out;         /* (rows, cols) acc; forward only */
    const void *dout;  /* (rows, cols) acc; backward only */
    void *dx;          /* (rows, x_cols) acc, added to; backward only */
    void *dtable;      /* (cols) acc, added to; backward only */
} DsvAddRowsArgs;
typedef DsvStatus dsvi_add_rows_fn(DsvStream *stream, const DsvAddRowsArgs *args);

dsvi_activation_fn dsvi_activation_fwd_ref, dsvi_activation_bwd_ref;
dsvi_gate_residual_fn dsvi_gate_residual_fwd_ref, dsvi_gate_residual_bwd_ref;
dsvi_add_fn dsvi_add_ref;
dsvi_add_rows_fn dsvi_add_rows_fwd_ref, dsvi_add_rows_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
