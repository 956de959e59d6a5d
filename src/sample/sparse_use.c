/* Implements sparse_use.h. */
#include "sample/sparse_use.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DsvStatus dsvi_sparse_use_make(int64_t blocks, DsviSparseUse *out)
{
    size_t count = (size_t)blocks;
    *out = (DsviSparseUse){
        .blocks = blocks,
        .sparse_steps = malloc(count * sizeof *out->sparse_steps),
        .density = malloc(count * sizeof *out->density),
        .captured = malloc(count * sizeof *out->captured),
    };
    if (!out->sparse_steps || !out->density || !out->captured)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the densities of %lld blocks", (long long)blocks);
    dsvi_sparse_use_clear(out);
    return DSV_OK;
}

void dsvi_sparse_use_free(DsviSparseUse *use)
{
    free(use->sparse_steps);
    free(use->density);
    free(use->captured);
    memset(use, 0, sizeof *use);
}

void dsvi_sparse_use_clear(DsviSparseUse *use)
{
    use->steps = 0;
    for (int64_t block = 0; block < use->blocks; block++) {
        use->sparse_steps[block] = 0;
        use->density[block] = 0;
        use->captured[block] = NAN;
    }
}

void dsvi_sparse_use_add(DsviSparseUse *use, const DsviSparse *sparse)
{
    use->steps++;
    for (int64_t block = 0; block < use->blocks; block++) {
        DsviSparseBlockReport report;
        dsvi_sparse_block_report(sparse, block, &report);
        use->sparse_steps[block] += report.over_lists;
        use->density[block] += report.over_lists ? report.density : 1;
        use->captured[block] = report.captured_mass;
    }
}

DsviSparseUseMean dsvi_sparse_use_mean(const DsviSparseUse *use)
{
    DsviSparseUseMean mean = {.density = use->steps > 0 ? 0 : 1};
    double captured = 0;
    for (int64_t block = 0; block < use->blocks; block++) {
        if (use->steps > 0)
            mean.density += use->density[block] / (double)(use->steps * use->blocks);
        if (use->sparse_steps[block] == 0)
            continue;
        mean.sparse_blocks++;
        captured += use->captured[block];
    }
    mean.captured = mean.sparse_blocks > 0 ? captured / (double)mean.sparse_blocks : NAN;
    return mean;
}

void dsvi_sparse_use_line(const DsviSparseUse *use, int64_t block, char *line, size_t bytes)
{
    char captured[48] = "captured mass was not measured";
    if (!isnan(use->captured[block]))
        snprintf(captured, sizeof captured, "its lists hold %.3f of the attention mass",
                 use->captured[block]);
    snprintf(line, bytes, "block %lld: sparse in %lld of %lld steps, mean density %.3f; %s", (long long)block,
             (long long)use->sparse_steps[block], (long long)use->steps,
             use->steps > 0 ? use->density[block] / (double)use->steps : 1, captured);
}
