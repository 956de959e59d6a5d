/* dsv_plan (include/dsv/plan.h): takes shapes from the configuration and costs from a file or a measurement,
 * chooses a plan for each block, and estimates simple plans for comparison. */
#include <math.h>
#include <stdlib.h>

#include "base/config_abi.h"
#include "plan/densities.h"
#include "plan/plan_parts.h"
#include "dist/ranks.h"
#include "cp/cp_prices.h"
#include "model/dit/dit.h"

/* Computes the shapes of model and clip from the configuration. Sets *unit: every shard (range of tokens
 * of a rank) must be a multiple of this number of tokens. */
static DsvStatus plan_describe(const DsvConfig *config, DsviPlanned *p, int64_t *unit)
{
    DsviCodec *codec;
    DsviDitConfig dit;
    DsviVideoShape video = {3, config->num_frames, config->height, config->width}, latent;
    DSVI_TRY(dsvi_codec_open(config, &codec));
    DsvStatus status = codec->latent_shape(codec, video, &latent);
    codec->close(codec);
    DSVI_TRY(status);
    DSVI_TRY(dsvi_dit_config_make(config, &dit));
    DsviDitShape shape = dsvi_dit_shape_of(&dit, config->train_batch_size, latent);
    shape.act = dsvi_dit_act(config);
    shape.backward = true;
    shape.keep = dsvi_dit_keep(config);
    p->model = dsvi_dit_sparse_shape(&dit, &shape);
    p->shape = dsvi_dit_cp_shape(&dit, &shape, config);
    *unit = dsvi_dit_cp_clip(&dit, &shape, config).unit;
    return DSV_OK;
}

static DsvStatus plan_allocate(DsviPlanned *p)
{
    size_t blocks = (size_t)p->model.blocks, heads = (size_t)p->model.heads, ranks = (size_t)p->shape.ranks;
    p->bound = calloc(ranks + 1, sizeof *p->bound);
    p->block = calloc(blocks, sizeof *p->block);
    p->density = calloc(blocks * heads, sizeof *p->density);
    p->placement = calloc(blocks * heads, sizeof *p->placement);
    p->plan_bound = calloc(blocks * (ranks + 1), sizeof *p->plan_bound);
    if (!p->bound || !p->block || !p->density || !p->placement || !p->plan_bound)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %zu blocks for %zu ranks", blocks, ranks);
    for (size_t block = 0; block < blocks; block++) {
        p->block[block].density = p->density + block * heads;
        p->block[block].choice.placement = p->placement + block * heads;
        p->block[block].choice.bound = p->plan_bound + block * (ranks + 1);
    }
    return DSV_OK;
}

static void plan_free_arrays(DsviPlanned *p)
{
    free(p->bound);
    free(p->block);
    free(p->density);
    free(p->placement);
    free(p->plan_bound);
}

static DsvStatus plan_divide_tokens(DsviPlanned *p, int64_t unit)
{
    if (p->shape.ranks < 2)
        return DSVI_FAIL(DSV_E_USAGE, "a clip that one rank has alone needs no plan: cp_size is %lld",
                         (long long)p->config->cp_size);
    DSVI_TRY(plan_allocate(p));
    DSVI_TRY(dsvi_cp_shard_bounds(p->shape.tokens, unit, p->shape.ranks, p->bound));
    p->shape.bound = p->bound;
    return DSV_OK;
}

/* Sets shape->rows_max as in a run: enough for the option cp_room, and for a division of the tokens into
 * equal parts at every possible number of ranks. */
static void plan_set_rows_max(DsviPlanned *p)
{
    DsviCpShape *shape = &p->shape;
    shape->rows_max = (int64_t)(p->config->cp_room * (double)(shape->tokens * shape->heads) /
                                (double)shape->ranks);
    for (int64_t h = 1; h <= shape->ranks && h <= shape->heads; h++) {
        if (shape->ranks % h || (shape->head_ranks > 0 && h != shape->head_ranks))
            continue;
        int64_t rows = dsvi_cp_shards(shape, h).group_max * ((shape->heads + h - 1) / h);
        shape->rows_max = rows > shape->rows_max ? rows : shape->rows_max;
    }
}

/* Returns the expected seconds of a simple plan, which divides the heads, in order, into head_ranks parts,
 * and the tokens among the ranks that share a part. Returns INFINITY if there are fewer than head_ranks
 * heads. */
static double naive_time(const DsviPlanned *p, const DsviCpBlock *known, int64_t head_ranks)
{
    int32_t placement[DSVI_PLACED_HEADS_MAX];
    int64_t bound[DSVI_PLACED_HEADS_MAX + 1];
    DsviCpTimes times;
    if (head_ranks > p->model.heads)
        return INFINITY;
    for (int64_t h = 0; h < p->model.heads; h++)
        placement[h] = (int32_t)h;
    dsvi_comm_even_bounds(p->model.heads, 1, head_ranks, bound);
    const DsviCpPlan plan = {head_ranks, p->shape.ranks / head_ranks, placement, bound};
    dsvi_cp_times(&p->costs, &p->shape, known, &plan, &times);
    return times.total;
}

static DsvStatus plan_block(const DsviPlanned *p, DsviPlannedBlock *block)
{
    /* An exchange of all keys is modelled by an infinite spread (DsviCpBlock): the lists of a rank then
     * together name every key. */
    DsviCpBlock all_keys = {.density = block->known.density, .spread = INFINITY};
    DSVI_TRY(dsvi_cp_choose(&p->costs, &p->shape, &block->known, NULL, &block->choice));
    block->naive[DSVI_NAIVE_HEADS] = naive_time(p, &block->known, p->shape.ranks);
    block->naive[DSVI_NAIVE_TOKENS] = naive_time(p, &block->known, 1);
    block->naive[DSVI_NAIVE_ALL_KEYS] = naive_time(p, &all_keys, 1);
    return DSV_OK;
}

static DsvStatus plan_read_densities(DsviPlanned *p, const char *densities)
{
    if (densities)
        DSVI_TRY(dsvi_densities_read(densities, p->model.blocks, p->model.heads, p->density));
    for (int64_t block = 0; block < p->model.blocks; block++) {
        DsviPlannedBlock *b = &p->block[block];
        bool lists = densities && !isnan(b->density[0]);
        b->known = (DsviCpBlock){lists ? b->density : NULL, DSVI_CP_SPREAD};
    }
    return DSV_OK;
}

static DsvStatus plan_all_blocks(DsviComm *comm, const DsvPlanQuestion *question, DsviPlanned *p)
{
    DSVI_TRY(plan_read_densities(p, question->densities));
    if (question->table)
        DSVI_TRY(dsvi_costs_read(question->table, &p->costs));
    else if (comm)
        DSVI_TRY(dsvi_plan_costs_of_ranks(comm, p->config, &p->model, &p->costs));
    else
        DSVI_TRY(dsvi_plan_costs_here(p->config, &p->model, p->shape.ranks, &p->costs));
    if (question->save && dsvi_comm_rank(comm) == 0)
        DSVI_TRY(dsvi_costs_write(question->save, &p->costs));
    for (int64_t block = 0; block < p->model.blocks; block++)
        DSVI_TRY(plan_block(p, &p->block[block]));
    return DSV_OK;
}

/* Sets the number of ranks that share a clip. If costs are measured on the ranks of `comm`, the number is the
 * size of `comm`. */
static DsvStatus count_ranks(DsviComm *comm, const DsvPlanQuestion *question, DsviPlanned *p)
{
    int64_t requested = question->ranks ? question->ranks : p->config->cp_size;
    p->shape.ranks = comm && !question->table ? dsvi_comm_size(comm) : requested;
    if (question->ranks && question->ranks != p->shape.ranks)
        return DSVI_FAIL(DSV_E_USAGE, "%lld ranks are asked about and %lld are there to measure",
                         (long long)question->ranks, (long long)p->shape.ranks);
    return DSV_OK;
}

static DsvStatus plan_answer(DsviComm *comm, const DsvPlanQuestion *question, const DsvConfig *config,
                             DsviPlanned *p)
{
    int64_t unit;
    *p = (DsviPlanned){.config = config};
    DSVI_TRY(plan_describe(config, p, &unit));
    DSVI_TRY(count_ranks(comm, question, p));
    DSVI_TRY(plan_divide_tokens(p, unit));
    plan_set_rows_max(p);
    return plan_all_blocks(comm, question, p);
}

DsvStatus dsv_plan(DsvRanks *ranks, const DsvPlanQuestion *question, const DsvConfig *config,
                   const char *json_path, DsvLine *line, void *context)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviPlanned p;
    DsviComm *comm = ranks ? ranks->comm : NULL;
    DsvStatus status = dsvi_comm_fail(comm, plan_answer(comm, question, config, &p));
    bool reports = status == DSV_OK && dsvi_comm_rank(comm) == 0;
    if (reports && line)
        dsvi_plan_draw(&p, line, context);
    if (reports && json_path)
        status = dsvi_plan_write(&p, json_path);
    plan_free_arrays(&p);
    return status;
}
