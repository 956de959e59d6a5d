/* The closed form. With Q = E q q^T = L L^T and C = cov k = E k k^T - (E k) (E k)^T, the mean squared
 * error of scores taken through a matrix M of rank r instead of the identity is
 *     E (q^T (I - M) (k - E k))^2 = | L^T (I - M) C^1/2 |_F^2,
 * least, by Eckart and Young, where L^T M C^1/2 is the truncated singular value decomposition of L^T C^1/2:
 * M = L^-T W W^T L^T with W the r leading eigenvectors of L^T C L. So P = L^-T W and K = L W. Any root of
 * Q would do; Cholesky's is the cheapest. A head of 128 costs some milliseconds, in which a GPU may wait.
 *
 * Scores of the mean query are exact where its row of M is that of the identity: where L^-1 E q is among the
 * columns of W. So that direction is made the leading one, whatever its eigenvalue. */
#include "sparse/projection_solve.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <lapacke.h>

/* Q gets this share of its trace in every direction: the moments are sums in F32, and a direction that no
 * query takes needs no exact scale. */
#define LEAST_SHARE 1e-6

typedef struct Workspace {
    double *root;       /* (D, D) L */
    double *product;    /* (D, D) C, then C L */
    double *matrix;     /* (D, D) L^T C L */
    double *leading;    /* (D, D) eigenvectors, one a row, of which r are wanted */
    double *eigenvalue; /* (D) */
    double *lapack;
    lapack_int *lapack_integers;
} Workspace;

/* What LAPACK's dsyevr asks for: doubles; integers, of which 2 D tell where vectors are not zero. */
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

static Workspace lay_out(int64_t dim, void *memory)
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

/* root (dim, dim) lower triangle, zeros above: L of `moments` and what every direction gets. Without
 * queries L is the identity. */
static void find_root(int64_t dim, const double *moments, double *root)
{
    double trace = 0;
    for (int64_t i = 0; i < dim; i++)
        trace += moments[i * dim + i];
    double least = trace > 0 ? LEAST_SHARE * trace : 1;
    memset(root, 0, (size_t)(dim * dim) * sizeof *root);
    for (int64_t i = 0; i < dim; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = moments[i * dim + j] + (i == j ? least : 0);
            for (int64_t d = 0; d < j; d++)
                sum -= root[i * dim + d] * root[j * dim + d];
            root[i * dim + j] = i == j ? sqrt(fmax(sum, least)) : sum / root[j * dim + j];
        }
    }
}

/* matrix = L^T C L, with C in `product` on entry. Rows are added to rows, side by side. */
static void between_roots(int64_t dim, const Workspace *w)
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

/* Makes u = L^-1 query_mean an eigenvector of w->matrix, with an eigenvalue above all others, and keeps the
 * matrix on what is orthogonal to u. A mean of zero changes nothing. */
static void lead_with_mean(int64_t dim, const double *query_mean, const Workspace *w)
{
    double *u = w->eigenvalue, *row = w->leading, square = 0, own = 0, trace = 0; /* not in use yet */
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
        own += row[i] * u[i];
    double most = 2 * trace + 1;
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w->matrix[i * dim + j] += (own + most) * u[i] * u[j] - u[i] * row[j] - row[i] * u[j];
}

/* w->leading: the `rank` leading eigenvectors of w->matrix, the last one first. */
static DsvStatus find_leading(int64_t dim, int64_t rank, const Workspace *w)
{
    lapack_int n = (lapack_int)dim, found = 0, *ends = w->lapack_integers + lapack_integers(dim);
    lapack_int info = LAPACKE_dsyevr_work(LAPACK_COL_MAJOR, 'V', 'I', 'U', n, w->matrix, n, 0, 0,
                                          (lapack_int)(dim - rank + 1), n, 0, &found, w->eigenvalue,
                                          w->leading, n, ends, w->lapack, (lapack_int)lapack_doubles(dim),
                                          w->lapack_integers, (lapack_int)lapack_integers(dim));
    if (info != 0 || found != (lapack_int)rank)
        return DSVI_FAIL(DSV_E_DIVERGED, "projection: LAPACK dsyevr found %d of %lld eigenvectors of the "
                         "covariances of queries and keys, head size %lld: info %d", (int)found,
                         (long long)rank, (long long)dim, (int)info);
    return DSV_OK;
}

/* Column r of P and of K from w = W_r, which is lost: K is L w; P solves L^T p = w, from the last row up. */
static void project(int64_t dim, int64_t rank, int64_t r, const double *root, double *w,
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

DsvStatus dsvi_projection_solve(int64_t dim, int64_t rank, const DsvProjectionMoments *moments,
                                float *query_projection, float *key_projection, void *workspace)
{
    Workspace w = lay_out(dim, workspace);
    const double *key_second = moments->key_second, *key_mean = moments->key_mean;
    DSVI_ASSERT(rank >= 1 && rank <= dim);
    if (!is_finite(dim, moments->query_second) || !is_finite(dim, key_second))
        return DSVI_FAIL(DSV_E_DIVERGED, "projection: queries or keys are not finite");
    find_root(dim, moments->query_second, w.root);
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < dim; j++)
            w.product[i * dim + j] = key_second[i * dim + j] - key_mean[i] * key_mean[j];
    between_roots(dim, &w);
    lead_with_mean(dim, moments->query_mean, &w);
    DSVI_TRY(find_leading(dim, rank, &w));
    for (int64_t r = 0; r < rank; r++)
        project(dim, rank, r, w.root, w.leading + (rank - 1 - r) * dim, query_projection, key_projection);
    return DSV_OK;
}
