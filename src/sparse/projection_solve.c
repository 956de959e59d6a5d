/* The closed form. With Q = E q q^T and C = cov k = E k k^T - (E k) (E k)^T, the mean squared error of scores
 * taken through a matrix M of rank r instead of the identity is
 *     E (q^T (I - M) (k - E k))^2 = | Q^1/2 (I - M) C^1/2 |_F^2,
 * least, by Eckart and Young, where Q^1/2 M C^1/2 is the truncated singular value decomposition of
 * Q^1/2 C^1/2: M = Q^-1/2 V V^T Q^1/2 with V the r leading eigenvectors of Q^1/2 C Q^1/2. Half of M goes to
 * the queries, half to the keys.
 *
 * With Q = U L U^T everything is done in the basis U: V = U W, where W are the eigenvectors of
 * L^1/2 (U^T C U) L^1/2; so P = U L^-1/2 W and K = U L^1/2 W. */
#include "sparse/projection_solve.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <lapacke.h>

/* Eigenvalues of Q below this share of the largest count as it: the covariances are sums in F32, and a
 * direction no query takes needs no exact scale. */
#define EIGENVALUE_FLOOR 1e-6

typedef struct Workspace {
    double *basis;    /* (D, D) column i of U, or of W, in row i */
    double *product;  /* (D, D) */
    double *matrix;   /* (D, D) */
    double *eigenvalue, *root; /* (D) */
    double *lapack;
    lapack_int *lapack_integers;
} Workspace;

/* What LAPACK's dsyevd asks for with eigenvectors. */
static size_t lapack_doubles(int64_t dim)
{
    return (size_t)(1 + 6 * dim + 2 * dim * dim);
}

static size_t lapack_integers(int64_t dim)
{
    return (size_t)(3 + 5 * dim);
}

size_t dsvi_projection_workspace(int64_t dim)
{
    size_t doubles = (size_t)(3 * dim * dim + 2 * dim) + lapack_doubles(dim);
    size_t bytes = doubles * sizeof(double) + lapack_integers(dim) * sizeof(lapack_int);
    return (bytes + 63) / 64 * 64;
}

static Workspace lay_out(int64_t dim, void *memory)
{
    Workspace w;
    w.basis = memory;
    w.product = w.basis + dim * dim;
    w.matrix = w.product + dim * dim;
    w.eigenvalue = w.matrix + dim * dim;
    w.root = w.eigenvalue + dim;
    w.lapack = w.root + dim;
    w.lapack_integers = (lapack_int *)(w.lapack + lapack_doubles(dim));
    return w;
}

static bool is_finite(int64_t dim, const double *matrix)
{
    double sum = 0;
    for (int64_t i = 0; i < dim * dim; i++)
        sum += fabs(matrix[i]);
    return isfinite(sum);
}

/* Symmetric (dim, dim) `matrix` becomes its eigenvectors, one a row, eigenvalues ascending. */
static DsvStatus eigenvectors(const Workspace *w, int64_t dim, double *matrix)
{
    lapack_int n = (lapack_int)dim;
    lapack_int info = LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'U', n, matrix, n, w->eigenvalue, w->lapack,
                                          (lapack_int)lapack_doubles(dim), w->lapack_integers,
                                          (lapack_int)lapack_integers(dim));
    if (info != 0)
        return DSVI_FAIL(DSV_E_DIVERGED, "projection: LAPACK dsyevd found no eigenvectors of the covariances "
                         "of queries and keys, head size %lld: info %d", (long long)dim, (int)info);
    return DSV_OK;
}

/* out = a b, all (dim, dim) row-major: rows of b are added to rows of out, side by side. */
static void multiply(int64_t dim, const double *a, const double *b, double *out)
{
    memset(out, 0, (size_t)(dim * dim) * sizeof *out);
    for (int64_t i = 0; i < dim; i++)
        for (int64_t d = 0; d < dim; d++)
            for (int64_t j = 0; j < dim; j++)
                out[i * dim + j] += a[i * dim + d] * b[d * dim + j];
}

static void transpose(int64_t dim, const double *matrix, double *out)
{
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            out[j * dim + i] = matrix[i * dim + j];
}

/* Row d, column r of P and K: the sum over i of U_di W_ir root_i^-1 or root_i. `query` and `key` are (D). */
static void project(int64_t dim, int64_t rank, const Workspace *w, double *query, double *key,
                    float *query_projection, float *key_projection)
{
    for (int64_t r = 0; r < rank; r++) {
        const double *leading = w->matrix + (dim - 1 - r) * dim;
        memset(query, 0, (size_t)dim * sizeof *query);
        memset(key, 0, (size_t)dim * sizeof *key);
        for (int64_t i = 0; i < dim; i++) {
            double for_query = leading[i] / w->root[i], for_key = leading[i] * w->root[i];
            for (int64_t d = 0; d < dim; d++) {
                query[d] += w->basis[i * dim + d] * for_query;
                key[d] += w->basis[i * dim + d] * for_key;
            }
        }
        for (int64_t d = 0; d < dim; d++) {
            query_projection[d * rank + r] = (float)query[d];
            key_projection[d * rank + r] = (float)key[d];
        }
    }
}

DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const double *query_second,
                                const double *key_second, const double *key_mean, float *query_projection,
                                float *key_projection, void *workspace)
{
    Workspace w = lay_out(dim, workspace);
    DSVI_ASSERT(rank >= 1 && rank <= dim);
    if (!is_finite(dim, query_second) || !is_finite(dim, key_second))
        return DSVI_FAIL(DSV_E_DIVERGED, "projection: queries or keys are not finite");

    memcpy(w.basis, query_second, (size_t)(dim * dim) * sizeof(double));
    DSVI_TRY(eigenvectors(&w, dim, w.basis));
    double largest = w.eigenvalue[dim - 1];
    for (int64_t i = 0; i < dim; i++)
        w.root[i] = largest > 0 ? sqrt(fmax(w.eigenvalue[i], EIGENVALUE_FLOOR * largest)) : 1;

    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w.matrix[i * dim + j] = key_second[i * dim + j] - key_mean[i] * key_mean[j];
    multiply(dim, w.basis, w.matrix, w.product); /* U^T C */
    transpose(dim, w.basis, w.lapack);           /* LAPACK's memory, which it does not want now */
    multiply(dim, w.product, w.lapack, w.matrix);
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w.matrix[i * dim + j] *= w.root[i] * w.root[j];
    DSVI_TRY(eigenvectors(&w, dim, w.matrix));

    project(dim, rank, &w, w.lapack, w.lapack + dim, query_projection, key_projection);
    return DSV_OK;
}
