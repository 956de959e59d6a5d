/* See cp_rig.h. */
#include "cp/cp_rig.h"

#include "base/rng.h"
#include "test.h"

typedef struct Shared {
    const CpCase *c;
    cp_rank_fn *fn;
    void *shared;
} Shared;

const char *cp_case_text(const CpCase *c)
{
    static char text[160];
    snprintf(text, sizeof text, "%lld ranks, %lld by heads, b %lld s %lld unit %lld n %lld d %lld %s%s",
             (long long)c->ranks, (long long)c->head_ranks, (long long)c->batch, (long long)c->tokens,
             (long long)c->unit, (long long)c->heads, (long long)c->head_dim, dsvi_dtype_name(c->act),
             c->uneven ? ", uneven" : "");
    return text;
}

static int64_t drawn(DsviRng rng, uint64_t i, int64_t below)
{
    return (int64_t)(dsvi_rng_uniform(rng, i) * (double)below) % below;
}

/* Sets a plan with a random permutation of the heads and random numbers of heads, at least one per rank. */
static DsvStatus set_uneven_plan(DsviCp *cp, const CpCase *c)
{
    DsviRng rng = {c->seed, DSVI_RNG_TEST, 1000};
    int32_t placement[RIG_HEADS_MAX];
    int64_t bound[RIG_RANKS_MAX + 1] = {0}, count[RIG_RANKS_MAX];
    for (int64_t i = 0; i < c->heads; i++) {
        int64_t j = c->head_ranks > 1 ? drawn(rng, (uint64_t)i, i + 1) : i;
        placement[i] = placement[j];
        placement[j] = (int32_t)i;
    }
    for (int64_t i = 0; i < c->head_ranks; i++)
        count[i] = 1;
    for (int64_t i = c->head_ranks; i < c->heads; i++)
        count[drawn(rng, (uint64_t)(100 + i), c->head_ranks)]++;
    for (int64_t i = 0; i < c->head_ranks; i++)
        bound[i + 1] = bound[i] + count[i];
    DsviCpPlan plan = {c->head_ranks, c->ranks / c->head_ranks, placement, bound};
    return dsvi_cp_set_plan(cp, 0, &plan);
}

static DsvStatus on_backend(DsviComm *comm, const Shared *shared, const CpCase *c)
{
    DsviCpGroup *group = NULL;
    DsviCp *cp = NULL;
    DsviCpClip shape = {.tokens = c->tokens,
                        .heads = c->heads,
                        .unit = c->unit,
                        .blocks = 1,
                        .rows_max = c->uneven ? c->tokens * c->heads : 0};
    DsvStatus status;
    DSVI_TRY_GOTO(status, dsvi_cp_group_create(c->backend, comm, 0, &group), done);
    DSVI_TRY_GOTO(status, dsvi_cp_create(group, &shape, &cp), done);
    status = c->uneven ? set_uneven_plan(cp, c) : dsvi_cp_set_even_plan(cp, 0, c->head_ranks);
    if (status == DSV_OK)
        status = shared->fn(cp, c, shared->shared);
done:
    status = dsvi_comm_fail(comm, status);
    dsvi_cp_free(&cp);
    dsvi_cp_group_close(&group);
    return status;
}

static DsvStatus on_rank(DsviComm *comm, void *argument)
{
    const Shared *shared = argument;
    CpCase own = *shared->c;
    DsviBackend backend = {0};
    if (!own.open)
        return on_backend(comm, shared, &own);
    DsvStatus status = own.open(dsvi_comm_rank(comm), &backend);
    if (status != DSV_OK)
        return dsvi_comm_fail(comm, status);
    own.backend = &backend;
    status = on_backend(comm, shared, &own);
    backend.device->close(backend.device);
    return status;
}

void try_cp(const CpCase *c, cp_rank_fn *fn, void *shared, RankOutcome *outcome)
{
    Shared all = {c, fn, shared};
    run_ranks(c->ranks, 60, on_rank, &all, outcome);
}

void run_cp(const CpCase *c, cp_rank_fn *fn, void *shared)
{
    RankOutcome outcome[RANKS_MAX];
    try_cp(c, fn, shared, outcome);
    for (int64_t r = 0; r < c->ranks; r++)
        if (outcome[r].status != DSV_OK)
            fail_msg("%s: rank %lld: %s", cp_case_text(c), (long long)r, outcome[r].sentence);
}

void for_cp_cases(const DsviBackend *backend, void (*fn)(const CpCase *c))
{
    static const struct {
        int64_t batch, tokens, unit, heads, head_dim;
    } sizes[] = {{1, 24, 1, 4, 8}, {2, 37, 4, 5, 6}, {2, 61, 8, 7, 16}, {1, 66, 16, 6, 10}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t ranks = 1; ranks <= 4; ranks++)
            for (int64_t head_ranks = 1; head_ranks <= ranks; head_ranks++)
                for (int uneven = 0; uneven < 2; uneven++) {
                    CpCase c = {backend,
                                ranks,
                                sizes[i].batch,
                                sizes[i].tokens,
                                sizes[i].unit,
                                sizes[i].heads,
                                sizes[i].head_dim,
                                head_ranks,
                                DSVI_F32,
                                DSVI_F32,
                                i * 10 + (uint64_t)ranks,
                                uneven,
                                true,
                                NULL};
                    if (ranks % head_ranks == 0)
                        fn(&c);
                }
}

double cp_value(const CpCase *c, int which, int64_t i)
{
    DsviRng rng = {c->seed, DSVI_RNG_TEST, (uint32_t)which};
    return dsvi_rng_normal(rng, (uint64_t)i);
}

void cp_fill(const DsviCp *cp, const CpCase *c, DsviDtype dtype, int which, bool heads_form, void *to)
{
    DsviCpPart part = dsvi_cp_part(cp, 0);
    int64_t first = heads_form ? part.first : dsvi_cp_first(cp), next = 0;
    int64_t tokens = heads_form ? part.tokens : dsvi_cp_tokens(cp);
    int64_t heads = heads_form ? part.heads : c->heads;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t s = first; s < first + tokens; s++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t head = heads_form ? part.head[h] : h;
                for (int64_t d = 0; d < c->head_dim; d++)
                    dsvi_store(dtype, to, next++,
                               cp_value(c, which, ((b * c->tokens + s) * c->heads + head) * c->head_dim + d));
            }
}
