/* Checks that attention has the same results with all parallel plans, by comparing the first rows of the
 * results. */
#include <math.h>
#include <stdlib.h>

#include "bench/bench_cp_parts.h"

/* Number of compared tensors (out, dq, dk, dv), and of tokens whose rows are compared. */
enum { TENSORS = 4, TOKENS = 64 };

static int64_t compared_elements(const DsviCpBench *b)
{
    int64_t tokens = dsvi_cp_tokens(b->cp);
    return (tokens < TOKENS ? tokens : TOKENS) * b->heads.heads * b->heads.head_dim;
}

size_t dsvi_cp_bench_rows_count(const DsviCpBench *b)
{
    return (size_t)(TENSORS * compared_elements(b));
}

DsvStatus dsvi_cp_bench_rows(const DsviCpBench *b, float *rows)
{
    DsviDevice *device = b->backend.device;
    DsvStatus status = DSV_OK;
    const void *const tensor[TENSORS] = {b->pass.out, b->pass.dq, b->pass.dk, b->pass.dv};
    int64_t n = compared_elements(b);
    size_t bytes = (size_t)n * dsvi_dtype_size(b->act);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of results", bytes);
    for (int i = 0; i < TENSORS; i++) {
        DSVI_TRY_GOTO(status, device->download(device->stream, host, tensor[i], bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
        dsvi_convert(DSVI_F32, rows + i * n, b->act, host, n);
    }
done:
    free(host);
    return status;
}

double dsvi_cp_bench_off(const DsviCpBench *b, const float *rows, const float *others)
{
    double max = 0;
    int64_t n = compared_elements(b);
    for (int t = 0; t < TENSORS; t++) {
        double off = 0, all = 0;
        for (int64_t i = t * n; i < (t + 1) * n; i++) {
            off += pow((double)rows[i] - others[i], 2);
            all += pow(others[i], 2);
        }
        max = fmax(max, sqrt(off / all));
    }
    return max;
}
