/* Both choices of a block timed on its own tensors: what the guard relies on, put to the proof.
 *
 * On measuring steps every block has lists, whichever side it is on. Attention then runs dense and over them,
 * each side twice, as a kernel's first run may load it; the pass that counts follows. A dense block's lists
 * lie aside until the backward pass, where the same is done: they take no room from those that are used. */
#include <math.h>
#include <stdio.h>

#include "sparse/sparse_internal.h"

enum { FORWARD, BACKWARD, RUNS = 2 };

bool dsvi_sparse_compares(const DsvSparse *s)
{
    return s->settings.sparse_time_choices && s->measuring && s->shape.backward;
}

/* Afterwards the block is on the side it was on. */
static DsvStatus time_side(DsvSparse *s, int64_t block, const DsvSparseAttention *pass, int which,
                           bool listed)
{
    DsvDevice *device = s->backend->device;
    DsvSparseBlock *b = &s->block[block];
    bool side = b->over_lists;
    double begin, end, *best = &b->times.seconds[which][listed];
    DsvStatus status = DSV_OK;
    b->over_lists = listed;
    *best = INFINITY;
    for (int run = 0; run < RUNS && status == DSV_OK; run++) {
        status = device->clock(device->stream, &begin);
        if (status == DSV_OK)
            status = (which == FORWARD ? dsvi_sparse_attend : dsvi_sparse_attend_back)(s, block, pass);
        if (status == DSV_OK)
            status = device->clock(device->stream, &end);
        if (status == DSV_OK)
            *best = fmin(*best, end - begin);
    }
    b->over_lists = side;
    return status;
}

static DsvStatus time_sides(DsvSparse *s, int64_t block, const DsvSparseAttention *pass, int which)
{
    DSVI_TRY(time_side(s, block, pass, which, false));
    return time_side(s, block, pass, which, true);
}

DsvStatus dsvi_sparse_time_forward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass,
                                   double select)
{
    DsvSparseBlock *b = &s->block[block];
    if (!b->fit)
        return DSV_OK;
    b->times.select = select;
    DSVI_TRY(time_sides(s, block, pass, FORWARD));
    b->times.forward = true;
    return DSV_OK;
}

DsvStatus dsvi_sparse_time_backward(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    if (!b->times.forward || b->times.backward)
        return DSV_OK;
    DSVI_TRY(time_sides(s, block, pass, BACKWARD));
    b->times.backward = true;
    return DSV_OK;
}

/* Seconds of both passes by the costs measured at start-up. */
static double predicted(const DsvSparse *s, bool listed, double density)
{
    const DsvSparseShape *shape = &s->shape;
    double tokens = (double)shape->tokens, pairs = (double)(shape->batch * shape->heads) * tokens * tokens;
    double seconds = listed ? s->cost.select * pairs : 0;
    for (int pass = 0; pass < DSV_PASSES; pass++) {
        double pair = listed ? dsvi_price_at(&s->cost.lists[pass], density) : s->cost.dense[pass];
        seconds += s->cost.call[pass] + pair * pairs;
    }
    return seconds;
}

void dsvi_sparse_tell_times(const DsvSparse *s, int64_t block, char *line, size_t line_bytes)
{
    const DsvSparseBlock *b = &s->block[block];
    const DsvSparseTimes *t = &b->times;
    char foretold[2][48] = {"", ""};
    line[0] = 0;
    if (!t->backward)
        return;
    for (int listed = 0; listed < 2 && s->knows_cost; listed++)
        snprintf(foretold[listed], sizeof foretold[listed], ", predicted %.2f",
                 1e3 * predicted(s, listed, b->measured_density));
    snprintf(line, line_bytes, "block %lld runs %s: lists of density %.3f hold %.2f of the attention mass, "
             "taking %.2f + %.2f + %.2f ms (selection, forward, backward)%s; dense %.2f + %.2f ms%s",
             (long long)block, s->record.sparse[block] || s->forced ? "sparse" : "dense",
             b->measured_density, s->record.captured[block], 1e3 * t->select,
             1e3 * t->seconds[FORWARD][true], 1e3 * t->seconds[BACKWARD][true], foretold[true],
             1e3 * t->seconds[FORWARD][false], 1e3 * t->seconds[BACKWARD][false], foretold[false]);
}
