/* dsv_plan: shapes from settings, prices from a table or measured, a plan for each block, and naive ones. */
#include <math.h>
#include <stdlib.h>

#include "api/densities.h"
#include "api/plan_parts.h"
#include "api/ranks.h"
#include "context/cp_prices.h"
#include "model/dit.h"

/* The model and the clip that settings describe. */
static DsvStatus describe(const DsvConfig *config, DsvPlanned *p, int64_t *unit)
{
    DsvCodec *codec;
    DsvDitConfig dit;
    DsvVideoShape video = {3, config->num_frames, config->height, config->width}, latent;
    DSVI_TRY(dsvi_codec_open(config, &codec));
    DsvStatus status = codec->latent_shape(codec, video, &latent);
    codec->close(codec);
    DSVI_TRY(status);
    DSVI_TRY(dsvi_dit_config_make(config, &dit));
    const DsvDitShape shape = {
        .batch = config->train_batch_size, .frames = latent.frames, .height = latent.height,
        .width = latent.width, .text_len = dit.text_len, .act = dsvi_dit_act(config), .backward = true,
        .keep = dsvi_dit_keep(config),
    };
    p->model = dsvi_dit_sparse_shape(&dit, &shape);
    p->shape = dsvi_dit_cp_shape(&dit, &shape, config);
    *unit = dsvi_dit_context_shape(&dit, &shape, config).unit;
    return DSV_OK;
}

static DsvStatus take_memory(DsvPlanned *p)
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

static void free_memory(DsvPlanned *p)
{
    free(p->bound);
    free(p->block);
    free(p->density);
    free(p->placement);
    free(p->plan_bound);
}

static DsvStatus share_tokens(DsvPlanned *p, int64_t unit)
{
    if (p->shape.ranks < 2)
        return DSVI_FAIL(DSV_E_USAGE, "a clip that one rank has alone needs no plan: cp_size is %lld",
                         (long long)p->config->cp_size);
    DSVI_TRY(take_memory(p));
    DSVI_TRY(dsvi_context_stretches(p->shape.tokens, unit, p->shape.ranks, p->bound));
    p->shape.bound = p->bound;
    return DSV_OK;
}

/* Room as a run has it: cp_room, and for even plans of any degree. */
static void make_room(DsvPlanned *p)
{
    DsvCpShape *shape = &p->shape;
    shape->rows_most =
        (int64_t)(p->config->cp_room * (double)(shape->tokens * shape->heads) / (double)shape->ranks);
    for (int64_t h = 1; h <= shape->ranks && h <= shape->heads; h++) {
        if (shape->ranks % h || (shape->head_ranks > 0 && h != shape->head_ranks))
            continue;
        int64_t rows = dsvi_cp_stretches(shape, h).group_most * ((shape->heads + h - 1) / h);
        shape->rows_most = rows > shape->rows_most ? rows : shape->rows_most;
    }
}

/* All ranks in one degree, heads in order. */
static double naive_time(const DsvPlanned *p, const DsvCpBlock *known, int64_t head_ranks)
{
    int32_t placement[DSV_PLACED_HEADS_MOST];
    int64_t bound[DSV_PLACED_HEADS_MOST + 1];
    DsvCpTimes times;
    if (head_ranks > p->model.heads)
        return INFINITY;
    for (int64_t h = 0; h < p->model.heads; h++)
        placement[h] = (int32_t)h;
    dsvi_comm_bounds(p->model.heads, 1, head_ranks, bound);
    const DsvContextPlan plan = {head_ranks, p->shape.ranks / head_ranks, placement, bound};
    dsvi_cp_times(&p->costs, &p->shape, known, &plan, &times);
    return times.total;
}

static DsvStatus plan_block(const DsvPlanned *p, DsvPlannedBlock *block)
{
    DsvCpBlock all_keys = {.density = block->known.density, .spread = INFINITY}; /* as of so many lists */
    DSVI_TRY(dsvi_cp_choose(&p->costs, &p->shape, &block->known, NULL, &block->choice));
    block->naive[DSV_NAIVE_HEADS] = naive_time(p, &block->known, p->shape.ranks);
    block->naive[DSV_NAIVE_TOKENS] = naive_time(p, &block->known, 1);
    block->naive[DSV_NAIVE_ALL_KEYS] = naive_time(p, &all_keys, 1);
    return DSV_OK;
}

static DsvStatus take_densities(DsvPlanned *p, const char *densities)
{
    if (densities)
        DSVI_TRY(dsvi_densities_read(densities, p->model.blocks, p->model.heads, p->density));
    for (int64_t block = 0; block < p->model.blocks; block++) {
        DsvPlannedBlock *b = &p->block[block];
        bool lists = densities && !isnan(b->density[0]);
        b->known = (DsvCpBlock){lists ? b->density : NULL, DSV_CP_SPREAD};
    }
    return DSV_OK;
}

static DsvStatus plan(DsvComm *comm, const DsvPlanQuestion *question, DsvPlanned *p)
{
    DSVI_TRY(take_densities(p, question->densities));
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

/* Ranks that measure are those that share the clip. */
static DsvStatus count_ranks(DsvComm *comm, const DsvPlanQuestion *question, DsvPlanned *p)
{
    int64_t wanted = question->ranks ? question->ranks : p->config->cp_size;
    p->shape.ranks = comm && !question->table ? dsvi_comm_size(comm) : wanted;
    if (question->ranks && question->ranks != p->shape.ranks)
        return DSVI_FAIL(DSV_E_USAGE, "%lld ranks are asked about and %lld are there to measure",
                         (long long)question->ranks, (long long)p->shape.ranks);
    return DSV_OK;
}

static DsvStatus answer(DsvComm *comm, const DsvPlanQuestion *question, const DsvConfig *config,
                        DsvPlanned *p)
{
    int64_t unit;
    *p = (DsvPlanned){.config = config};
    DSVI_TRY(describe(config, p, &unit));
    DSVI_TRY(count_ranks(comm, question, p));
    DSVI_TRY(share_tokens(p, unit));
    make_room(p);
    return plan(comm, question, p);
}

DsvStatus dsv_plan(DsvRanks *ranks, const DsvPlanQuestion *question, const DsvConfig *config,
                   const char *json_path, DsvLine *line, void *context)
{
    DsvPlanned p;
    DsvComm *comm = ranks ? ranks->comm : NULL;
    DsvStatus status = dsvi_comm_fail(comm, answer(comm, question, config, &p));
    bool speaks = status == DSV_OK && dsvi_comm_rank(comm) == 0;
    if (speaks && line)
        dsvi_plan_draw(&p, line, context);
    if (speaks && json_path)
        status = dsvi_plan_write(&p, json_path);
    free_memory(&p);
    return status;
}
