/* Times a block's attention both densely and over lists, on the same tensors (sparse.time_choices). The times
 * serve to check the costs measured at start-up, on which the guard relies.
 *
 * On measuring steps every block has key lists, also a dense block. Attention is then computed both ways,
 * each way twice because the first launch of a kernel may load it, and the faster run counts. The regular
 * pass follows. Lists of a dense block are stored in compare_spans until its backward pass, which is timed
 * in the same way, so that these lists take no memory from lists of sparse blocks. */
#include <math.h>
#include <stdio.h>

#include "sparse/sparse_internal.h"

enum { FORWARD, BACKWARD, RUNS = 2 };

bool dsvi_sparse_compares(const DsviSparse *s)
{
    return s->settings.sparse_time_choices && s->measuring && s->shape.backward;
}

/* Times one pass, dense or over lists, and keeps the shortest time. Afterwards the block's field
 * over_lists has its former value. */
static DsvStatus sparse_time_choice(DsviSparse *s, int64_t block, const DsviAttentionCall *pass, int which,
                                    bool listed)
{
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    bool over_lists = b->over_lists;
    double begin, end, *best = &b->times.seconds[which][listed];
    DsvStatus status = DSV_OK;
    b->over_lists = listed;
    *best = INFINITY;
    for (int run = 0; run < RUNS && status == DSV_OK; run++) {
        status = device->clock(device->stream, &begin);
        if (status == DSV_OK)
            status = (which == FORWARD ? dsvi_sparse_attend : dsvi_sparse_attend_bwd)(s, block, pass);
        if (status == DSV_OK)
            status = device->clock(device->stream, &end);
        if (status == DSV_OK)
            *best = fmin(*best, end - begin);
    }
    b->over_lists = over_lists;
    return status;
}

static DsvStatus sparse_time_both(DsviSparse *s, int64_t block, const DsviAttentionCall *pass, int which)
{
    DSVI_TRY(sparse_time_choice(s, block, pass, which, false));
    return sparse_time_choice(s, block, pass, which, true);
}

DsvStatus dsvi_sparse_time_forward(DsviSparse *s, int64_t block, const DsviAttentionCall *pass, double select)
{
    DsviSparseBlock *b = &s->block[block];
    if (!b->fit)
        return DSV_OK;
    b->times.select = select;
    DSVI_TRY(sparse_time_both(s, block, pass, FORWARD));
    b->times.forward = true;
    return DSV_OK;
}

DsvStatus dsvi_sparse_time_backward(DsviSparse *s, int64_t block, const DsviAttentionCall *pass)
{
    DsviSparseBlock *b = &s->block[block];
    if (!b->times.forward || b->times.backward)
        return DSV_OK;
    DSVI_TRY(sparse_time_both(s, block, pass, BACKWARD));
    b->times.backward = true;
    return DSV_OK;
}

/* Returns the seconds that forward and backward attention should take together, by the costs measured at
 * start-up. */
static double predicted_seconds(const DsviSparse *s, bool listed, double density)
{
    const DsviSparseShape *shape = &s->shape;
    double tokens = (double)shape->tokens, pairs = (double)(shape->batch * shape->heads) * tokens * tokens;
    double seconds = listed ? s->cost.select * pairs : 0;
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        double pair = listed ? dsvi_price_at(&s->cost.lists[pass], density) : s->cost.dense[pass];
        seconds += s->cost.call[pass] + pair * pairs;
    }
    return seconds;
}

void dsvi_sparse_format_times(const DsviSparse *s, int64_t block, char *line, size_t line_bytes)
{
    const DsviSparseBlock *b = &s->block[block];
    const DsviSparseTimes *t = &b->times;
    char prediction[2][48] = {"", ""};
    line[0] = 0;
    if (!t->backward)
        return;
    for (int listed = 0; listed < 2 && s->has_cost; listed++)
        snprintf(prediction[listed], sizeof prediction[listed], ", predicted %.2f",
                 1e3 * predicted_seconds(s, listed, b->measured_density));
    snprintf(line, line_bytes,
             "block %lld runs %s: lists of density %.3f hold %.2f of the attention mass, "
             "taking %.2f + %.2f + %.2f ms (selection, forward, backward)%s; dense %.2f + %.2f ms%s",
             (long long)block, s->record.sparse[block] || s->forced ? "sparse" : "dense", b->measured_density,
             s->record.captured[block], 1e3 * t->select, 1e3 * t->seconds[FORWARD][true],
             1e3 * t->seconds[BACKWARD][true], prediction[true], 1e3 * t->seconds[FORWARD][false],
             1e3 * t->seconds[BACKWARD][false], prediction[false]);
}
