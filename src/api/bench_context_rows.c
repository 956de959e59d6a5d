/* Whether all choices compute the same: the first rows of their results, compared. */
#include <math.h>
#include <stdlib.h>

#include "api/bench_context_parts.h"

enum { TENSORS = 4, TOKENS = 64 };

static int64_t elements(const DsvContextBench *b)
{
    int64_t own = dsvi_context_tokens(b->context);
    return (own < TOKENS ? own : TOKENS) * b->heads.heads * b->heads.head_dim;
}

size_t dsvi_context_bench_rows_count(const DsvContextBench *b)
{
    return (size_t)(TENSORS * elements(b));
}

DsvStatus dsvi_context_bench_rows(const DsvContextBench *b, float *rows)
{
    DsvDevice *device = b->backend.device;
    DsvStatus status = DSV_OK;
    const void *const tensor[TENSORS] = {b->pass.out, b->pass.dq, b->pass.dk, b->pass.dv};
    int64_t n = elements(b);
    size_t bytes = (size_t)n * dsvi_dtype_size(b->act);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of results", bytes);
    for (int i = 0; i < TENSORS; i++) {
        DSVI_TRY_GOTO(status, device->download(device->stream, host, tensor[i], bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
        dsvi_convert(DSV_F32, rows + i * n, b->act, host, n);
    }
done:
    free(host);
    return status;
}

double dsvi_context_bench_off(const DsvContextBench *b, const float *rows, const float *others)
{
    double most = 0;
    int64_t n = elements(b);
    for (int t = 0; t < TENSORS; t++) {
        double off = 0, all = 0;
        for (int64_t i = t * n; i < (t + 1) * n; i++) {
            off += pow((double)rows[i] - others[i], 2);
            all += pow(others[i], 2);
        }
        most = fmax(most, sqrt(off / all));
    }
    return most;
}
