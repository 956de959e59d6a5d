/* The orthogonalisation of Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
 * networks"): replaces a matrix by a nearly orthogonal one with the same singular vectors.
 *
 * X = U S V^T is divided by its Frobenius norm. Five steps of a Newton-Schulz iteration,
 *     A = X X^T,   X = a X + (b A + c A A) X   with (a, b, c) = (3.4445, -4.7750, 2.0315),
 * bring each singular value that is not tiny into about 0.7 to 1.2. A tall matrix uses A = X^T X on the
 * right, so that A has the size of the smaller side. */
#ifndef DSVI_MUON_H
#define DSVI_MUON_H

#include "base/arena.h"
#include "model/weights/weights.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviMuon {
    int64_t elements, side;   /* of the largest matrix: its elements, and the square of its smaller side */
    DsviDtype act;            /* dtype of the products' inputs, F32 or BF16 */
    void *x;                  /* (elements) act */
    float *gram, *polynomial; /* (side) F32 */
    void *gram_act, *polynomial_act; /* (side) act; with F32 the arrays above */
    double *square;                  /* device memory */
    double *host_square;
} DsviMuon;

/* Prepares for the matrices of the blocks in `table`. */
DsviMuon dsvi_muon_make(const DsviParamTable *table, DsviDtype act);
/* Take device and host memory, once for planning and once bound (base/arena.h). */
void dsvi_muon_carve(DsviMuon *muon, DsviArena *arena);
void dsvi_muon_carve_host(DsviMuon *muon, DsviArena *arena);
/* Orthogonalises x (rows, cols) F32 in place, device memory. A matrix of zeros stays zero. Waits for the
 * device once. */
DsvStatus dsvi_muon_orthogonalise(const DsviMuon *muon, const DsviBackend *backend, int64_t rows,
                                  int64_t cols, float *x);
/* Returns the factor of lr for a matrix: 0.2 sqrt(max(rows, cols)), with which elements of the update have
 * the root mean square of AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training"). */
double dsvi_muon_factor(int64_t rows, int64_t cols);

#ifdef __cplusplus
}
#endif
#endif
