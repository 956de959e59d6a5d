/* Runs steps of a sparse layer on one rank and on several ranks, and compares the results; see cp_run.h. */
#include "sparse/cp_run.h"

#include "base/rng.h"
#include "dist/local_ranks.h"
#include "sparse/sparse_internal.h"

static int64_t groups_of(const CpRun *run)
{
    return (run->shape.tokens + run->settings.sparse_group - 1) / run->settings.sparse_group;
}

static int64_t full_of(const CpRun *run)
{
    return (run->shape.tokens + run->settings.sparse_grain - 1) / run->settings.sparse_grain;
}

static size_t row_bytes(const CpRun *run)
{
    return (size_t)(run->shape.heads * run->shape.head_dim) * dsvi_dtype_size(run->shape.act);
}

static size_t tensor_bytes(const CpRun *run)
{
    return (size_t)(run->shape.batch * run->shape.tokens) * row_bytes(run);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    return memory;
}

static void seen_create(const CpRun *run, RunSeen *seen)
{
    int64_t lists = run->shape.batch * run->shape.heads * groups_of(run);
    memset(seen, 0, sizeof *seen);
    for (int64_t step = 0; step < run->steps; step++)
        for (int64_t i = 0; i < run->shape.blocks; i++) {
            BlockSeen *b = &seen->block[step][i];
            void **const tensors[] = {&b->out, &b->dq, &b->dk, &b->dv};
            for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
                *tensors[t] = allocate(tensor_bytes(run));
            b->lengths = allocate((size_t)lists * sizeof *b->lengths);
            b->spans = allocate((size_t)(lists * full_of(run)) * sizeof *b->spans);
        }
}

void run_free(const CpRun *run, RunSeen *seen)
{
    for (int64_t step = 0; step < run->steps; step++)
        for (int64_t i = 0; i < run->shape.blocks; i++) {
            BlockSeen *b = &seen->block[step][i];
            void *const memory[] = {b->out, b->dq, b->dk, b->dv, b->lengths, b->spans};
            for (size_t t = 0; t < sizeof memory / sizeof *memory; t++)
                free(memory[t]);
        }
    for (int64_t step = 0; step < run->steps; step++)
        free(seen->predictor_moment[step]);
    for (int r = 0; r < RANKS_MAX; r++)
        free(seen->projection[r]);
}

/* Rounds a tensor to multiples of 1/8. Sums of products of such numbers are exact in any order, so that one
 * rank and several ranks compute the same projections and therefore the same lists. */
static void round_tensor(const CpRun *run, void *tensor)
{
    int64_t n = (int64_t)(tensor_bytes(run) / dsvi_dtype_size(run->shape.act));
    for (int64_t i = 0; i < n; i++)
        dsvi_store(run->shape.act, tensor, i, rint(8 * dsvi_load(run->shape.act, tensor, i)) / 8);
}

static void zero_heads(const CpRun *run, void *tensor)
{
    int64_t rows = run->shape.batch * run->shape.tokens * run->shape.heads, dim = run->shape.head_dim;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t d = 0; d < dim && row % run->shape.heads < run->wide_heads; d++)
            dsvi_store(run->shape.act, tensor, row * dim + d, 0);
}

static void fill(const CpRun *run, Rig *rig, int64_t step)
{
    rig_fill(rig, 100 + (uint64_t)step, run->focus[step]);
    for (int64_t i = 0; i < run->shape.blocks; i++) {
        zero_heads(run, rig->block[i].q);
        round_tensor(run, rig->block[i].q);
        round_tensor(run, rig->block[i].k);
    }
}

/* Copies device memory to the host and waits for the copy. */
static DsvStatus fetch(DsviDevice *device, void *host, const void *memory, size_t bytes)
{
    DSVI_TRY(device->download(device->stream, host, memory, bytes));
    return device->sync(device->stream);
}

/* Writes a rank's lists, which are in host memory, to their places among the lists of the whole problem. */
static void put_lists(const CpRun *run, const DsviSparseView *view, const DsviLists *lists, BlockSeen *seen)
{
    for (int64_t n = 0; n < dsvi_lists_count(lists); n++) {
        int64_t pair = n / lists->groups, h = pair % lists->heads, head = view->head ? view->head[h] : h;
        int64_t at = (pair / lists->heads * run->shape.heads + head) * groups_of(run) +
                     view->first / lists->group + n % lists->groups;
        DsviList list = dsvi_list_at(lists, n);
        seen->lengths[at] = list.count;
        memcpy(seen->spans + at * full_of(run), list.spans, (size_t)list.count * sizeof *list.spans);
    }
}

static DsvStatus note_lists(const CpRun *run, DsviDevice *device, const DsviSparse *sparse, int64_t block,
                            BlockSeen *seen)
{
    const DsviLists *lists = dsvi_sparse_lists(sparse, block);
    DsviSparseView view = dsvi_sparse_view(sparse, block);
    if (!lists) {
        seen->dense = true;
        return DSV_OK;
    }
    DsviLists host = *lists;
    int64_t count = dsvi_lists_count(lists);
    host.offsets = allocate((size_t)(count + 1) * sizeof *host.offsets);
    DSVI_TRY(fetch(device, host.offsets, lists->offsets, (size_t)(count + 1) * sizeof *host.offsets));
    host.spans = allocate((size_t)host.offsets[count] * sizeof *host.spans);
    DSVI_TRY(fetch(device, host.spans, lists->spans, (size_t)host.offsets[count] * sizeof *host.spans));
    put_lists(run, &view, &host, seen);
    free(host.offsets);
    free(host.spans);
    return DSV_OK;
}

/* One rank: its sparse layer, and its tensors on its device. */
typedef struct Worker {
    const CpRun *run;
    DsviDevice *device;
    DsviSparse *sparse;
    DsviCp *cp; /* NULL: the only rank */
    int64_t first, tokens;
    DsviAttentionCall pass[RIG_BLOCKS_MAX];
} Worker;

/* Bytes before this rank's tokens of sample b: place_in_all in a host tensor of all tokens, place_in_local in
 * a tensor of this rank. */
static size_t place_in_all(const Worker *w, int64_t b)
{
    return (size_t)(b * w->run->shape.tokens + w->first) * row_bytes(w->run);
}

static size_t place_in_local(const Worker *w, int64_t b)
{
    return (size_t)(b * w->tokens) * row_bytes(w->run);
}

static DsvStatus upload_rows(const Worker *w, const void *all, const void *own)
{
    DsviDevice *device = w->device;
    for (int64_t b = 0; b < w->run->shape.batch; b++)
        DSVI_TRY(device->upload(device->stream, (char *)own + place_in_local(w, b),
                                (const char *)all + place_in_all(w, b), place_in_local(w, 1)));
    return device->sync(device->stream);
}

static DsvStatus download_rows(const Worker *w, const void *own, void *all)
{
    for (int64_t b = 0; b < w->run->shape.batch; b++)
        DSVI_TRY(fetch(w->device, (char *)all + place_in_all(w, b), (const char *)own + place_in_local(w, b),
                       place_in_local(w, 1)));
    return DSV_OK;
}

/* ---- one step of one rank ---- */

static uint64_t sent_so_far(const Worker *w, int64_t block)
{
    if (!w->cp)
        return 0;
    DsviCpPart part = dsvi_cp_part(w->cp, block);
    return dsvi_comm_sent(part.head_device).bytes + dsvi_comm_sent(part.sequence_device).bytes;
}

static int64_t rank_of(const Worker *w)
{
    return w->cp ? dsvi_cp_rank(w->cp) : 0;
}

static DsvStatus forward(Worker *w, int64_t block, BlockSeen *seen)
{
    uint64_t before = sent_so_far(w, block);
    DSVI_TRY(dsvi_sparse_forward(w->sparse, block, &w->pass[block]));
    seen->sent[rank_of(w)] = sent_so_far(w, block) - before;
    return note_lists(w->run, w->device, w->sparse, block, seen);
}

static DsvStatus backward(Worker *w, int64_t block, BlockSeen *seen)
{
    DsviAttentionCall *pass = &w->pass[block], again = *pass;
    size_t bytes = (size_t)(w->run->shape.batch * w->tokens) * row_bytes(w->run);
    again.recompute = true;
    if (w->run->recompute) {
        DSVI_TRY(w->device->clear(w->device->stream, pass->out, bytes));
        DSVI_TRY(dsvi_sparse_forward(w->sparse, block, &again));
    }
    uint64_t before = sent_so_far(w, block);
    DSVI_TRY(dsvi_sparse_backward(w->sparse, block, pass));
    seen->sent_back[rank_of(w)] = sent_so_far(w, block) - before;
    DSVI_TRY(download_rows(w, pass->out, seen->out));
    DSVI_TRY(download_rows(w, pass->dq, seen->dq));
    DSVI_TRY(download_rows(w, pass->dk, seen->dk));
    return download_rows(w, pass->dv, seen->dv);
}

static DsvStatus one_step(Worker *w, int64_t step, bool reports, BlockSeen *seen)
{
    int64_t blocks = w->run->shape.blocks;
    DSVI_TRY(dsvi_sparse_step_begin(w->sparse, step + 1, !w->run->validation));
    for (int64_t i = 0; i < blocks; i++)
        DSVI_TRY(forward(w, i, &seen[i]));
    for (int64_t i = blocks - 1; i >= 0; i--)
        DSVI_TRY(backward(w, i, &seen[i]));
    DSVI_TRY(dsvi_sparse_step_end(w->sparse));
    for (int64_t i = 0; i < blocks && reports; i++) {
        dsvi_sparse_block_report(w->sparse, i, &seen[i].report);
        dsvi_sparse_head_densities(w->sparse, i, seen[i].burden);
    }
    return DSV_OK;
}

/* Returns the item `name` of the selector's state; its memory is NULL if the selector has no such item. */
static DsviStateItem state_item(const Worker *w, const char *name)
{
    DsviStateList list = {.count = 0};
    if (w->sparse->selector)
        dsvi_selector_state(w->sparse->selector, &list);
    for (int i = 0; i < list.count; i++)
        if (strcmp(list.item[i].name, name) == 0)
            return list.item[i];
    return (DsviStateItem){.memory = NULL};
}

/* Stores the predictor's loss and its running mean of gradients at the end of a step. */
static DsvStatus note_learnt(const Worker *w, int64_t step, RunSeen *seen)
{
    DsviSparseReport report;
    DsviStateItem item = state_item(w, "predictor.exp_avg");
    dsvi_sparse_report(w->sparse, &report);
    seen->predictor_loss[step] = report.predictor_loss;
    if (!item.memory)
        return DSV_OK;
    seen->moment_count = item.shape[0] * item.shape[1];
    size_t bytes = (size_t)seen->moment_count * dsvi_dtype_size(item.dtype);
    seen->predictor_moment[step] = allocate(bytes);
    return fetch(w->device, seen->predictor_moment[step], item.memory, bytes);
}

static DsvStatus note_projection(const Worker *w, RunSeen *seen)
{
    DsviStateItem item = state_item(w, "projection.query");
    if (!item.memory)
        return DSV_OK;
    seen->projection_count = item.shape[0] * item.shape[1] * item.shape[2] * item.shape[3];
    size_t bytes = (size_t)seen->projection_count * sizeof(float);
    seen->projection[rank_of(w)] = allocate(bytes);
    return fetch(w->device, seen->projection[rank_of(w)], item.memory, bytes);
}

static void drift(const Worker *w)
{
    DsviStateItem item = state_item(w, "projection.query_second");
    double *moment = item.memory;
    int64_t dim = item.shape[3], count = item.shape[0] * item.shape[1] * dim * dim;
    for (int64_t i = 0; i < count; i += dim + 1)
        moment[i] *= 1 + (double)(i % 7);
}

/* ---- all steps of one rank ---- */

typedef struct Shared {
    const CpRun *run;
    Rig *source[RUN_STEPS_MAX]; /* the inputs of the whole problem in each step */
    int64_t reporting_rank;     /* the rank whose reports are stored */
    RunSeen *seen;
} Shared;

/* Sets the plan of a block. With run->uneven the order of the heads and the number of heads on each rank are
 * random, and differ from block to block. */
static DsvStatus set_plan(const CpRun *run, DsviCp *cp, int64_t block, int64_t head_ranks)
{
    DsviRng rng = {7, DSVI_RNG_TEST, 2000 + (uint32_t)block};
    int32_t placement[16];
    int64_t bound[RANKS_MAX + 1] = {0}, heads = run->shape.heads;
    if (!run->uneven)
        return dsvi_cp_set_even_plan(cp, block, head_ranks);
    for (int64_t i = 0; i < heads; i++) {
        int64_t j = head_ranks > 1 ? (int64_t)dsvi_rng_below(rng, (uint64_t)i, (uint64_t)(i + 1)) : i;
        placement[i] = placement[j];
        placement[j] = (int32_t)i;
    }
    for (int64_t i = 0; i < heads; i++) {
        uint64_t drawn = dsvi_rng_below(rng, 50 + (uint64_t)i, (uint64_t)head_ranks);
        int64_t rank = i < head_ranks ? i : (int64_t)drawn;
        bound[rank + 1]++;
    }
    for (int64_t i = 0; i < head_ranks; i++)
        bound[i + 1] += bound[i];
    const DsviCpPlan plan = {head_ranks, run->ranks / head_ranks, placement, bound};
    return dsvi_cp_set_plan(cp, block, &plan);
}

/* Sets the plans of all blocks before a step. With run->head_ranks 0 the number of ranks that divide the
 * heads changes with each step and block. */
static DsvStatus plan_step(const CpRun *run, DsviCp *cp, int64_t step)
{
    for (int64_t i = 0; i < run->shape.blocks; i++) {
        int64_t head_ranks = run->head_ranks;
        for (int64_t turn = 0; run->head_ranks == 0 && turn <= step + i; turn++)
            do
                head_ranks = head_ranks % run->ranks + 1;
            while (run->ranks % head_ranks || head_ranks > run->shape.heads);
        DSVI_TRY(set_plan(run, cp, i, head_ranks));
    }
    return DSV_OK;
}

static void carve_pass(Worker *w, size_t tensor, size_t lse, DsviArena *arena)
{
    for (int64_t i = 0; i < w->run->shape.blocks; i++) {
        DsviAttentionCall *pass = &w->pass[i];
        const void **const given[] = {&pass->q, &pass->k, &pass->v, &pass->hidden, &pass->dout};
        void **const made[] = {&pass->out, &pass->dq, &pass->dk, &pass->dv};
        for (size_t t = 0; t < sizeof given / sizeof *given; t++)
            *given[t] = dsvi_arena_take(arena, DSVI_MEM_DATA, tensor);
        for (size_t t = 0; t < sizeof made / sizeof *made; t++)
            *made[t] = dsvi_arena_take(arena, DSVI_MEM_DATA, tensor);
        pass->lse = dsvi_arena_take(arena, DSVI_MEM_DATA, lse);
        pass->scale = 1 / sqrt((double)w->run->shape.head_dim);
    }
    dsvi_sparse_carve(w->sparse, arena);
    dsvi_sparse_carve_call(w->sparse, arena);
}

static DsvStatus run_steps(const Shared *shared, DsviCp *cp, Worker *w, bool reports)
{
    const CpRun *run = shared->run;
    for (int64_t step = 0; step < run->steps; step++) {
        if (cp)
            DSVI_TRY(plan_step(run, cp, step));
        if (run->drifts && step == 1 && rank_of(w) == 1)
            drift(w);
        for (int64_t i = 0; i < run->shape.blocks; i++) {
            DsviAttentionCall all = rig_pass(shared->source[step], i);
            const void *const given[][2] = {
                {w->pass[i].q, all.q},           {w->pass[i].k, all.k},       {w->pass[i].v, all.v},
                {w->pass[i].hidden, all.hidden}, {w->pass[i].dout, all.dout},
            };
            for (size_t t = 0; t < sizeof given / sizeof *given; t++)
                DSVI_TRY(upload_rows(w, given[t][1], given[t][0]));
        }
        DSVI_TRY(one_step(w, step, reports, shared->seen->block[step]));
        if (reports)
            DSVI_TRY(note_learnt(w, step, shared->seen));
    }
    return note_projection(w, shared->seen);
}

/* Fills device memory with NaN, so that reading an element that was never written shows in the results. */
static DsvStatus fill_with_nan(DsviDevice *device, void *memory, size_t bytes)
{
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a test");
    memset(host, 0xff, bytes);
    DsvStatus status = device->upload(device->stream, memory, host, bytes);
    if (status == DSV_OK)
        status = device->sync(device->stream);
    free(host);
    return status;
}

static size_t lse_bytes(const CpRun *run, const DsviCp *cp)
{
    DsviDtype acc = run->shape.act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    if (cp)
        return dsvi_cp_lse_bytes(cp, run->shape.batch, acc);
    return (size_t)(run->shape.batch * run->shape.tokens * run->shape.heads) * dsvi_dtype_size(acc);
}

/* Runs all steps on one rank. `cp` is NULL if there is only one rank; `reports`: this rank stores the
 * reports. */
static DsvStatus work(const Shared *shared, DsviBackend *backend, DsviCp *cp, bool reports)
{
    const CpRun *run = shared->run;
    DsviDevice *device = backend->device;
    Worker w = {.run = run,
                .device = device,
                .cp = cp,
                .first = cp ? dsvi_cp_first(cp) : 0,
                .tokens = cp ? dsvi_cp_tokens(cp) : run->shape.tokens};
    DsviSparseShape shape = run->shape;
    DsviArena arena;
    DsvStatus status;
    void *memory = NULL, *host_memory = NULL;
    size_t tensor = (size_t)(run->shape.batch * w.tokens) * row_bytes(run), lse = lse_bytes(run, cp);
    shape.cp = cp;
    DSVI_TRY(dsvi_sparse_create(backend, &run->settings, &shape, NULL, NULL, &w.sparse));
    dsvi_arena_plan(&arena);
    carve_pass(&w, tensor, lse, &arena);
    size_t bytes = arena.used;
    DSVI_TRY_GOTO(status, device->mem_alloc(device, bytes, &memory), done);
    DSVI_TRY_GOTO(status, fill_with_nan(device, memory, bytes), done);
    dsvi_arena_bind(&arena, memory, bytes);
    carve_pass(&w, tensor, lse, &arena);
    DSVI_TRY_GOTO(status, rig_host_memory(w.sparse, device, &host_memory), done);
    DSVI_TRY_GOTO(status, dsvi_sparse_setup(w.sparse), done);
    dsvi_sparse_force(w.sparse, run->forced);
    if (run->density)
        dsvi_sparse_prescribe(w.sparse, run->density);
    status = run_steps(shared, cp, &w, reports);
done:
    dsvi_sparse_free(&w.sparse);
    device->mem_free(device, memory);
    device->host_free(device, host_memory);
    return status;
}

static DsvStatus work_in_group(const Shared *shared, DsviBackend *backend, DsviComm *comm)
{
    const CpRun *run = shared->run;
    DsviCpGroup *group = NULL;
    DsviCp *cp = NULL;
    DsviCpClip shape = {.tokens = run->shape.tokens,
                        .heads = run->shape.heads,
                        .unit = dsvi_sparse_unit(&run->settings),
                        .blocks = run->shape.blocks,
                        .rows_max = run->uneven ? run->shape.tokens * run->shape.heads : 0};
    DsvStatus status;
    DSVI_TRY_GOTO(status, dsvi_cp_group_create(backend, comm, shape.head_ranks, &group), done);
    DSVI_TRY_GOTO(status, dsvi_cp_create(group, &shape, &cp), done);
    status = work(shared, backend, cp, dsvi_comm_rank(comm) == shared->reporting_rank);
done:
    status = dsvi_comm_fail(comm, status);
    dsvi_cp_free(&cp);
    dsvi_cp_group_close(&group);
    return status;
}

/* Opens a separate backend for each rank, because a stream may be used by one thread only. */
static DsvStatus open_backend(const CpRun *run, int64_t rank, DsviBackend *backend)
{
    return run->open ? run->open(rank, backend) : dsvi_cpu_open(run->isa, 2, backend);
}

static DsvStatus on_rank(DsviComm *comm, void *argument)
{
    const Shared *shared = argument;
    DsviBackend backend;
    DsvStatus status = open_backend(shared->run, dsvi_comm_rank(comm), &backend);
    if (status != DSV_OK)
        return dsvi_comm_fail(comm, status);
    status = work_in_group(shared, &backend, comm);
    backend.device->close(backend.device);
    return status;
}

/* ---- all ranks ---- */

static void begin_run(Shared *shared, Rig source[RUN_STEPS_MAX])
{
    const CpRun *run = shared->run;
    seen_create(run, shared->seen);
    for (int64_t step = 0; step < run->steps; step++) {
        rig_open(&source[step], run->isa, 2, &run->settings, &run->shape);
        fill(run, &source[step], step);
        shared->source[step] = &source[step];
    }
}

static void end_run(const Shared *shared)
{
    for (int64_t step = 0; step < shared->run->steps; step++)
        rig_close(shared->source[step]);
}

void run_alone(const CpRun *run, RunSeen *seen)
{
    static Rig source[RUN_STEPS_MAX];
    DsviBackend backend;
    Shared shared = {.run = run, .seen = seen};
    begin_run(&shared, source);
    assert_ok(open_backend(run, 0, &backend));
    assert_ok(work(&shared, &backend, NULL, true));
    backend.device->close(backend.device);
    end_run(&shared);
}

void run_shared(const CpRun *run, int64_t reporting_rank, RunSeen *seen)
{
    static Rig source[RUN_STEPS_MAX];
    RankOutcome outcome[RANKS_MAX];
    Shared shared = {.run = run, .reporting_rank = reporting_rank, .seen = seen};
    begin_run(&shared, source);
    run_ranks(run->ranks, 60, on_rank, &shared, outcome);
    for (int64_t r = 0; r < run->ranks; r++)
        if (outcome[r].status != DSV_OK)
            fail_msg("%lld ranks, %lld by heads: rank %lld: %s", (long long)run->ranks,
                     (long long)run->head_ranks, (long long)r, outcome[r].sentence);
    end_run(&shared);
}

/* ---- comparing ---- */

/* Returns the number of spans that are in only one of two lists. */
static int64_t difference(const int32_t *a, int64_t a_count, const int32_t *b, int64_t b_count)
{
    int64_t i = 0, j = 0, apart = 0;
    while (i < a_count || j < b_count) {
        bool take_a = j == b_count || (i < a_count && a[i] <= b[j]);
        bool take_b = i == a_count || (j < b_count && b[j] <= a[i]);
        apart += take_a != take_b;
        i += take_a;
        j += take_b;
    }
    return apart;
}

/* Fails if more than the fraction `slack` of the listed spans differ. Returns the fraction of the spans of
 * `a` that differ. */
static double compare_lists(const CpRun *run, const BlockSeen *a, const BlockSeen *b, double slack,
                            const char *where)
{
    int64_t lists = run->shape.batch * run->shape.heads * groups_of(run), all = 0, apart = 0;
    if (a->dense != b->dense)
        fail_msg("%s: alone %s, shared %s", where, a->dense ? "dense" : "over lists",
                 b->dense ? "dense" : "over lists");
    for (int64_t n = 0; n < lists; n++) {
        all += a->lengths[n];
        apart += difference(a->spans + n * full_of(run), a->lengths[n], b->spans + n * full_of(run),
                            b->lengths[n]);
    }
    if (!((double)apart <= slack * (double)all))
        fail_msg("%s: of %lld listed spans %lld differ", where, (long long)all, (long long)apart);
    return all > 0 ? (double)apart / (double)all : 0;
}

static void compare_reports(const CpRun *run, const BlockSeen *a, const BlockSeen *b, double slack,
                            const char *where)
{
    /* without a tail the output error is measured only if each rank has all keys of its heads */
    bool has_error = run->head_ranks == run->ranks || dsvi_sparse_has_tail(&run->settings);
    const double pairs[][2] = {
        {has_error ? a->report.output_error : 0, has_error ? b->report.output_error : 0},
        {a->report.captured_mass, b->report.captured_mass},
        {a->report.density, b->report.density},
        {a->report.estimated_mass, b->report.estimated_mass},
        {a->report.share90, b->report.share90},
        {(double)a->report.changes, (double)b->report.changes},
        {a->report.sparse, b->report.sparse},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!(fabs(pairs[i][0] - pairs[i][1]) < slack) && !(isnan(pairs[i][0]) && isnan(pairs[i][1])))
            fail_msg("%s: report %zu is %g alone, %g shared", where, i, pairs[i][0], pairs[i][1]);
    for (int64_t h = 0; h < run->shape.heads; h++)
        assert_error_below(fabs(a->burden[h] - b->burden[h]), slack, "%s: burden of head %d", where, (int)h);
}

static void compare_tensors(const CpRun *run, const BlockSeen *a, const BlockSeen *b, double slack,
                            const char *where)
{
    int64_t n = (int64_t)(tensor_bytes(run) / dsvi_dtype_size(run->shape.act));
    DsviDtype act = run->shape.act;
    assert_error_below(relative_l2(act, b->out, act, a->out, n), slack, "%s: out", where);
    assert_error_below(relative_l2(act, b->dq, act, a->dq, n), slack, "%s: dq", where);
    assert_error_below(relative_l2(act, b->dk, act, a->dk, n), slack, "%s: dk", where);
    assert_error_below(relative_l2(act, b->dv, act, a->dv, n), slack, "%s: dv", where);
}

static void compare_learnt(const CpRun *run, const RunSeen *a, const RunSeen *b, int64_t step, double slack)
{
    DsviDtype acc = run->shape.act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    const void *moments[2] = {a->predictor_moment[step], b->predictor_moment[step]};
    int ranks = (int)run->ranks, head_ranks = (int)run->head_ranks, number = (int)step + 1;
    assert_int_equal(moments[0] != NULL, strcmp(run->settings.sparse_selector, "predictor") == 0);
    if (!moments[0])
        return;
    assert_error_below(fabs(b->predictor_loss[step] / a->predictor_loss[step] - 1), slack,
                       "%d ranks, %d by heads, step %d: the predictor's loss", ranks, head_ranks, number);
    assert_error_below(relative_l2(acc, moments[1], acc, moments[0], a->moment_count), slack,
                       "%d ranks, %d by heads, step %d: the predictor's gradients", ranks, head_ranks,
                       number);
}

/* An output is a weighted sum of independent values. If lists differ in a fraction f of the keys, about this
 * fraction of the values is replaced, and the output changes by about sqrt(f) of its length. Therefore
 * slack.tensors grows by sqrt(f). */
void assert_same_run(const CpRun *run, const RunSeen *alone, const RunSeen *shared, RunSlack slack)
{
    for (int64_t step = 0; step < run->steps; step++) {
        compare_learnt(run, alone, shared, step, slack.tensors);
        for (int64_t i = 0; i < run->shape.blocks; i++) {
            const BlockSeen *a = &alone->block[step][i], *b = &shared->block[step][i];
            char where[128];
            snprintf(where, sizeof where, "%lld ranks, %lld by heads%s, step %lld, block %lld",
                     (long long)run->ranks, (long long)run->head_ranks, run->uneven ? ", uneven" : "",
                     (long long)step + 1, (long long)i);
            double apart = compare_lists(run, a, b, slack.lists, where);
            compare_reports(run, a, b, slack.reports, where);
            compare_tensors(run, a, b, slack.tensors + sqrt(apart), where);
        }
    }
}
