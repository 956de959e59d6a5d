/* Which blocks attend over lists: the guard's decisions after measuring steps, what overrides them
 * (dsvi_sparse_force, dsvi_sparse_prescribe, the dense finish), and the lines that say so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sparse/sparse_internal.h"

void dsvi_sparse_log_line(const DsviSparse *s, const char *line)
{
    if (s->log && line[0])
        s->log(s->log_context, line);
}

double dsvi_sparse_max_density(const DsviSparse *s)
{
    return fmin(s->settings.sparse_max_density, s->record.break_even[0]);
}

bool dsvi_sparse_uses_lists(const DsviSparse *s, int64_t block)
{
    if (s->prescribed)
        return !isnan(s->prescribed[block * s->shape.heads]);
    bool warming_up = s->train && s->step < s->settings.sparse_warmup_steps;
    return s->forced || (!s->record.finishing[0] && !warming_up && s->record.sparse[block]);
}

/* Returns the first training step of the dense finish, counted from 1. The run has max_train_steps steps, and
 * the finish the fraction sparse.dense_finish of them, rounded to whole steps. */
static int64_t first_step_of_finish(const DsviSparse *s)
{
    double steps = (double)s->settings.max_train_steps;
    return s->settings.max_train_steps - (int64_t)(s->settings.sparse_dense_finish * steps + 0.5) + 1;
}

/* The finish follows from the step alone, so a resumed run is in the same state as one that was not
 * interrupted. A run whose max_train_steps was raised goes back to the guard's decisions, which the finish
 * leaves as they were. */
bool dsvi_sparse_finish_begin(DsviSparse *s, int64_t step)
{
    char line[160];
    bool before = s->record.finishing[0], wanted = s->settings.sparse_dense_finish > 0;
    int64_t first = first_step_of_finish(s);
    s->record.finishing[0] = wanted && s->selector && step >= first;
    if (before && !s->record.finishing[0])
        dsvi_sparse_log_line(s, "the dense finish is over: blocks attend as the guard decides");
    if (!s->record.finishing[0])
        return false;
    snprintf(line, sizeof line,
             "all blocks attend densely from step %lld to the end of the run at step %lld "
             "(sparse.dense_finish=%g)",
             (long long)first, (long long)s->settings.max_train_steps, s->settings.sparse_dense_finish);
    if (!before)
        dsvi_sparse_log_line(s, line);
    return step == first;
}

bool dsvi_sparse_finishing(const DsviSparse *s)
{
    return s->record.finishing[0];
}

static double capacity_density(const DsviSparseBlock *b)
{
    return (double)b->lists.capacity / (double)(dsvi_lists_count(&b->lists) * dsvi_lists_full(&b->lists));
}

void dsvi_sparse_overflow(DsviSparse *s, int64_t block)
{
    char line[192];
    DsviSparseBlock *b = &s->block[block];
    b->overflow_density = s->record.density[block];
    if (s->train && !s->forced && !s->prescribed) {
        b->overflowed = true; /* dsvi_sparse_step_end logs that the lists did not fit */
        return;
    }
    snprintf(line, sizeof line,
             "block %lld ran dense: its lists needed density %.2f, above the %.2f there is room for; this is "
             "said once for each block",
             (long long)block, b->overflow_density, capacity_density(b));
    if (!b->overflow_logged)
        dsvi_sparse_log_line(s, line);
    b->overflow_logged = true;
}

/* Returns the head whose output over lists is worst: with a tail by its output error, otherwise by the mass
 * that its lists hold. */
static int64_t worst_head(const DsviSparse *s, int64_t block)
{
    const float *captured = s->record.head_captured + block * s->shape.heads;
    const float *error = s->record.head_error + block * s->shape.heads;
    int64_t worst = 0;
    for (int64_t h = 0; h < s->shape.heads; h++)
        if (s->tail.chunk > 0 ? error[h] > error[worst] : captured[h] < captured[worst])
            worst = h;
    return worst;
}

/* Asks the guard whether the block is sparse or dense from the next step on, and logs a change and a new
 * reason for staying dense. */
static void decide_block(DsviSparse *s, int64_t block)
{
    char line[320];
    const DsviSparseBlock *b = &s->block[block];
    DsviSparseRecord *r = &s->record;
    int64_t worst = worst_head(s, block);
    const DsviGuard guard = {
        .min_mass = s->settings.sparse_min_mass,
        .min_head_mass = s->settings.sparse_min_head_mass,
        .by_error = s->tail.chunk > 0,
        .max_error = s->settings.sparse_max_error,
        .max_head_error = s->settings.sparse_max_head_error,
        .max_density = dsvi_sparse_max_density(s),
        .slower_above = r->break_even[0] < s->settings.sparse_max_density,
        .hysteresis = s->settings.sparse_hysteresis,
    };
    const DsviGuardView view = {
        .sparse = r->sparse[block],
        .measured = b->measured,
        .overflowed = b->overflowed,
        .fit = b->measured_fit,
        .captured = r->captured[block],
        .density = r->listed[block],
        .worst_head = worst,
        .head_captured = r->head_captured[block * s->shape.heads + worst],
        .error = r->error[block],
        .head_error = r->head_error[block * s->shape.heads + worst],
        .needed = b->overflowed ? b->overflow_density : b->measured_density,
        .capacity = capacity_density(b),
    };
    bool sparse = dsvi_guard_decide(&guard, &view, block, &r->reason[block], line, sizeof line);
    if (b->overflowed) /* count the density of the lists that did not fit: the block becomes sparse again only
                        * after the running mean of densities has fallen below max_density */
        r->listed[block] = fmax(r->listed[block], b->overflow_density);
    r->sparse[block] = sparse;
    r->changes[block] += sparse != view.sparse;
    dsvi_sparse_log_line(s, line);
}

void dsvi_sparse_decide(DsviSparse *s)
{
    bool decides = s->ran && !s->forced && !s->prescribed && !s->record.finishing[0] &&
                   s->step >= s->settings.sparse_warmup_steps;
    for (int64_t block = 0; block < s->shape.blocks && decides; block++)
        decide_block(s, block);
}

void dsvi_sparse_force(DsviSparse *s, bool sparse_everywhere)
{
    DSVI_ASSERT(s->selector || !sparse_everywhere);
    s->forced = sparse_everywhere;
}

void dsvi_sparse_prescribe(DsviSparse *s, const double *density)
{
    DSVI_ASSERT(s->selector);
    memcpy(s->prescription, density, (size_t)(s->shape.blocks * s->shape.heads) * sizeof *density);
    s->prescribed = s->prescription;
}
