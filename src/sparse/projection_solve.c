/* The closed form of the projections that preserve scores best. Let Q = E q q^T = L L^T and C = cov k = E k
 * k^T - (E k) (E k)^T. If scores are computed as q^T M k with a matrix M of rank r instead of the identity,
 * their mean squared error is
 *     E (q^T (I - M) (k - E k))^2 = | L^T (I - M) C^1/2 |_F^2.
 * By Eckart and Young it is smallest if L^T M C^1/2 is the truncated singular value decomposition of L^T
 * C^1/2. The best matrix is M = L^-T W W^T L^T, where W has the r leading eigenvectors of L^T C L as columns,
 * so the projections are P = L^-T W for queries and K = L W for keys. Any square root of Q would do;
 * Cholesky's is the cheapest. A head of size 128 takes some milliseconds.
 *
 * Scores of the mean query are exact if (E q)^T M = (E q)^T, that is, if L^-1 E q is in the span of W.
 * This direction is therefore made the leading one, whatever its eigenvalue. */
#include "sparse/projection_solve.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <lapacke.h>

/* This fraction of Q's trace is added to its diagonal, so that Q has a Cholesky factor despite F32 sums. A
 * direction without queries needs no exact scale. */
#define DIAGONAL_FRACTION 1e-6

typedef struct Workspace {
    double *root;       /* (D, D) L */
    double *product;    /* (D, D) C, then C L */
    double *matrix;     /* (D, D) L^T C L */
    double *leading;    /* (D, D) eigenvectors, one in each row; the first r rows are used */
    double *eigenvalue; /* (D) */
    double *lapack;
    lapack_int *lapack_integers;
} Workspace;

/* Workspace that LAPACK's dsyevr requires for matrices of size D: 26 D doubles and 10 D integers. It also
 * returns 2 D integers, the ranges in which eigenvectors are not zero. */
static size_t lapack_doubles(int64_t dim)
{
    return (size_t)(26 * dim);
}

static size_t lapack_integers(int64_t dim)
{
    return (size_t)(10 * dim);
}

size_t dsvi_projection_workspace(int64_t dim)
{
    size_t doubles = (size_t)(4 * dim * dim + dim) + lapack_doubles(dim);
    size_t bytes = doubles * sizeof(double) + (lapack_integers(dim) + (size_t)(2 * dim)) * sizeof(lapack_int);
    return (bytes + 63) / 64 * 64;
}

static Workspace projection_solve_lay_out(int64_t dim, void *memory)
{
    Workspace w;
    w.root = memory;
    w.product = w.root + dim * dim;
    w.matrix = w.product + dim * dim;
    w.leading = w.matrix + dim * dim;
    w.eigenvalue = w.leading + dim * dim;
    w.lapack = w.eigenvalue + dim;
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

/* Fills root (dim, dim) with L, the Cholesky factor of `moments` (the mean of q q^T) with a slightly
 * increased diagonal. Elements of L above the diagonal are set to zero. If `moments` is zero, L is the
 * identity. */
static void find_root(int64_t dim, const double *moments, double *root)
{
    double trace = 0;
    for (int64_t i = 0; i < dim; i++)
        trace += moments[i * dim + i];
    double diagonal = trace > 0 ? DIAGONAL_FRACTION * trace : 1;
    memset(root, 0, (size_t)(dim * dim) * sizeof *root);
    for (int64_t i = 0; i < dim; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = moments[i * dim + j] + (i == j ? diagonal : 0);
            for (int64_t d = 0; d < j; d++)
                sum -= root[i * dim + d] * root[j * dim + d];
            root[i * dim + j] = i == j ? sqrt(fmax(sum, diagonal)) : sum / root[j * dim + j];
        }
    }
}

/* Computes matrix = L^T C L from the Cholesky factor L of the queries' second moments and the covariance C
 * of the keys, which is in `product` on entry. Inner loops run along rows, so they vectorise. */
static void multiply_by_roots(int64_t dim, const Workspace *w)
{
    memset(w->matrix, 0, (size_t)(dim * dim) * sizeof *w->matrix);
    for (int64_t i = 0; i < dim; i++)
        for (int64_t d = 0; d < dim; d++)
            for (int64_t j = 0; j <= d; j++)
                w->matrix[i * dim + j] += w->product[i * dim + d] * w->root[d * dim + j];
    memcpy(w->product, w->matrix, (size_t)(dim * dim) * sizeof *w->product);
    memset(w->matrix, 0, (size_t)(dim * dim) * sizeof *w->matrix);
    for (int64_t d = 0; d < dim; d++)
        for (int64_t i = 0; i <= d; i++)
            for (int64_t j = 0; j < dim; j++)
                w->matrix[i * dim + j] += w->root[d * dim + i] * w->product[d * dim + j];
}

/* Makes u = L^-1 query_mean an eigenvector of w->matrix, with an eigenvalue above all others. The matrix is
 * unchanged on the subspace orthogonal to u. A mean of zero changes nothing. */
static void lead_with_mean(int64_t dim, const double *query_mean, const Workspace *w)
{
    /* these two arrays are free for u until find_leading fills them */
    double *u = w->eigenvalue, *row = w->leading, square = 0, along = 0, trace = 0;
    for (int64_t i = 0; i < dim; i++) {
        double sum = query_mean[i];
        for (int64_t d = 0; d < i; d++)
            sum -= w->root[i * dim + d] * u[d];
        u[i] = sum / w->root[i * dim + i];
        square += u[i] * u[i];
        trace += w->matrix[i * dim + i];
    }
    if (!(square > 0))
        return;
    for (int64_t i = 0; i < dim; i++) {
        u[i] /= sqrt(square);
        row[i] = 0;
    }
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            row[j] += u[i] * w->matrix[i * dim + j];
    for (int64_t i = 0; i < dim; i++)
        along += row[i] * u[i];
    double largest = 2 * trace + 1;
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w->matrix[i * dim + j] += (along + largest) * u[i] * u[j] - u[i] * row[j] - row[i] * u[j];
}

/* Fills w->leading with the `rank` leading eigenvectors of w->matrix, in ascending order of eigenvalues. */
static DsvStatus find_leading(int64_t dim, int64_t rank, const Workspace *w)
{
    lapack_int n = (lapack_int)dim, found = 0, *ends = w->lapack_integers + lapack_integers(dim);
    lapack_int info = LAPACKE_dsyevr_work(LAPACK_COL_MAJOR, 'V', 'I', 'U', n, w->matrix, n, 0, 0,
                                          (lapack_int)(dim - rank + 1), n, 0, &found, w->eigenvalue,
                                          w->leading, n, ends, w->lapack, (lapack_int)lapack_doubles(dim),
                                          w->lapack_integers, (lapack_int)lapack_integers(dim));
    if (info != 0 || found != (lapack_int)rank)
        return DSVI_FAIL(DSV_E_DIVERGED,
                         "projection: LAPACK dsyevr found %d of %lld eigenvectors of the "
                         "covariances of queries and keys, head size %lld: info %d",
                         (int)found, (long long)rank, (long long)dim, (int)info);
    return DSV_OK;
}

/* Computes column r of the query projection P and of the key projection K from eigenvector w = W_r. The
 * column of K is L w. The column p of P solves L^T p = w by back substitution. Overwrites w. */
static void projection_solve_project(int64_t dim, int64_t rank, int64_t r, const double *root, double *w,
                                     float *query_projection, float *key_projection)
{
    for (int64_t d = 0; d < dim; d++) {
        double key = 0;
        for (int64_t i = 0; i <= d; i++)
            key += root[d * dim + i] * w[i];
        key_projection[d * rank + r] = (float)key;
    }
    for (int64_t d = dim - 1; d >= 0; d--) {
        double query = w[d] / root[d * dim + d];
        for (int64_t i = 0; i < d; i++)
            w[i] -= root[d * dim + i] * query;
        query_projection[d * rank + r] = (float)query;
    }
}

DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const DsviProjectionMoments *moments,
                                float *query_projection, float *key_projection, void *workspace)
{
    Workspace w = projection_solve_lay_out(dim, workspace);
    const double *key_second = moments->key_second, *key_mean = moments->key_mean;
    DSVI_ASSERT(rank >= 1 && rank <= dim);
    if (!is_finite(dim, moments->query_second) || !is_finite(dim, key_second))
        return DSVI_FAIL(DSV_E_DIVERGED, "projection: queries or keys are not finite");
    find_root(dim, moments->query_second, w.root);
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w.product[i * dim + j] = key_second[i * dim + j] - key_mean[i] * key_mean[j];
    multiply_by_roots(dim, &w);
    lead_with_mean(dim, moments->query_mean, &w);
    DSVI_TRY(find_leading(dim, rank, &w));
    for (int64_t r = 0; r < rank; r++)
        projection_solve_project(dim, rank, r, w.root, w.leading + (rank - 1 - r) * dim, query_projection,
                                 key_projection);
    return DSV_OK;
}
