/* The transformer on ranks that have a stretch of the tokens each, against one that has them all: the whole
 * output on every rank, or its part of the loss, gradients as sums over the ranks; in F64, where nothing but
 * a mistake is seen. */
#include "dit_case.h"
#include "dist/local_ranks.h"

enum { MOST = 4 };

typedef struct Shared {
    DsvDtype act;
    DsvDitKeep keep;
    bool loss;
    int64_t head_ranks;
    DsvBackend backend[MOST]; /* of the groups */
    DsvContextGroup *group[MOST];
    DsvContext *context[MOST];
    DitCase rank[MOST];
} Shared;

static DsvConfig dense_settings(int64_t head_ranks)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.sparse_enabled = false;
    settings.sparse_group = 16;
    settings.cp_heads = head_ranks;
    return settings;
}

/* 3 x 4 x 5 tokens in two samples. */
static DsvDitShape shape_of(const Shared *shared)
{
    return (DsvDitShape){.batch = 2, .frames = 3, .height = 8, .width = 10, .text_len = 5,
                         .act = shared->act, .backward = true, .keep = shared->keep,
                         .loss = shared->loss};
}

static void fill_case(DitCase *c, const DsvDitShape *shape, const DsvConfig *settings)
{
    DsvDitConfig config = dit_case_small_config();
    dit_case_open(c, &config, shape, shape->act == DSV_F64 ? "ref" : "auto", 1, settings);
    float *flat = dit_case_random_weights(&c->table, 0.1);
    dit_case_set_weights(c, flat);
    free(flat);
    dit_case_randomise(c, 1);
}

static DsvStatus share(DsvComm *comm, void *context)
{
    Shared *shared = context;
    int64_t r = dsvi_comm_rank(comm);
    DsvConfig settings = dense_settings(shared->head_ranks);
    DsvDitShape shape = shape_of(shared);
    DsvDitConfig config = dit_case_small_config();
    DsvContextShape wanted = dsvi_dit_context_shape(&config, &shape, &settings);
    DSVI_TRY(dsvi_cpu_open(shared->act == DSV_F64 ? "ref" : "auto", 1, &shared->backend[r]));
    DSVI_TRY(dsvi_context_group_create(&shared->backend[r], comm, 0, &shared->group[r]));
    DSVI_TRY(dsvi_context_create(shared->group[r], &wanted, &shared->context[r]));
    shape.context = shared->context[r];
    fill_case(&shared->rank[r], &shape, &settings);
    DSVI_TRY(dsvi_sparse_step_begin(shared->rank[r].sparse, 1, true));
    if (shared->loss)
        dit_case_loss_gradients(&shared->rank[r]);
    else
        dit_case_gradients(&shared->rank[r]);
    DSVI_TRY(dsvi_sparse_step_end(shared->rank[r].sparse));
    dsvi_context_group_close(&shared->group[r]);
    return DSV_OK;
}

/* What one has against the sum of what the ranks have, at the same place of each case. */
static void compare_sum(const Shared *shared, int64_t ranks, const DitCase *one, const void *wanted,
                        const void *const *part, int64_t n, double bound, const char *what)
{
    double *sum = calloc((size_t)n, sizeof *sum);
    assert_non_null(sum);
    for (int64_t r = 0; r < ranks; r++)
        for (int64_t i = 0; i < n; i++)
            sum[i] += dsvi_load(shared->rank[r].acc, part[r], i);
    assert_error_below(relative_l2(DSV_F64, sum, one->acc, wanted, n), bound, "%s, %d ranks, %d for heads",
                       what, (int)ranks, (int)shared->head_ranks);
    free(sum);
}

static void compare_outputs(const Shared *shared, int64_t ranks, const DitCase *one, double bound)
{
    for (int64_t r = 0; r < ranks; r++) {
        const DitCase *c = &shared->rank[r];
        assert_error_below(relative_l2(c->acc, c->output, one->acc, one->output, one->out_elements), bound,
                           "output of rank %d of %d", (int)r, (int)ranks);
        assert_memory_equal(c->output, shared->rank[0].output,
                            (size_t)c->out_elements * dsvi_dtype_size(c->acc));
    }
}

/* Each sample's loss is the sum of the ranks' parts. */
static void compare_losses(const Shared *shared, int64_t ranks, const DitCase *one, double bound)
{
    for (int64_t b = 0; b < one->shape.batch; b++) {
        double sum = 0, wanted = dsvi_load(one->acc, one->loss, b);
        for (int64_t r = 0; r < ranks; r++)
            sum += dsvi_dit_share(shared->rank[r].dit) *
                   dsvi_load(shared->rank[r].acc, shared->rank[r].loss, b);
        assert_error_below(fabs(sum - wanted), bound * wanted, "loss of sample %d, %d ranks", (int)b,
                           (int)ranks);
    }
}

static void compare(const Shared *shared, int64_t ranks, const DitCase *one, double bound, double grad_bound)
{
    const void *latents[MOST], *text[MOST], *grad[MOST];
    if (shared->loss)
        compare_losses(shared, ranks, one, bound);
    else
        compare_outputs(shared, ranks, one, bound);
    for (int64_t r = 0; r < ranks; r++) {
        latents[r] = shared->rank[r].dlatents;
        text[r] = shared->rank[r].dtext;
    }
    compare_sum(shared, ranks, one, one->dlatents, latents, one->in_elements, grad_bound, "latents");
    compare_sum(shared, ranks, one, one->dtext, text, one->text_elements, grad_bound, "text");
    for (int64_t i = 0; i < one->table.count; i++) {
        for (int64_t r = 0; r < ranks; r++)
            grad[r] = dit_case_grad(&shared->rank[r], i);
        compare_sum(shared, ranks, one, dit_case_grad(one, i), grad, one->table.params[i].count, grad_bound,
                    one->table.params[i].name);
    }
}

static void check(DsvDtype act, DsvDitKeep keep, bool loss, double bound, double grad_bound)
{
    /* ranks, and how many of them divide heads */
    static const int64_t layout[][2] = {{2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}};
    static Shared shared;
    DitCase one;
    shared = (Shared){.act = act, .keep = keep, .loss = loss};
    DsvConfig settings = dense_settings(0);
    DsvDitShape shape = shape_of(&shared);
    shape.loss = false; /* by way of the output */
    fill_case(&one, &shape, &settings);
    assert_ok(dsvi_sparse_step_begin(one.sparse, 1, true));
    dit_case_gradients(&one);
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        int64_t ranks = layout[i][0];
        shared.head_ranks = layout[i][1];
        run_ranks_well(ranks, share, &shared);
        compare(&shared, ranks, &one, bound, grad_bound);
        for (int64_t r = 0; r < ranks; r++) {
            dit_case_close(&shared.rank[r]);
            dsvi_context_free(&shared.context[r]);
            dsvi_cpu_close(&shared.backend[r]);
        }
    }
    dit_case_close(&one);
}

static void in_f64(void **state)
{
    (void)state;
    check(DSV_F64, DSV_KEEP_ALL, false, 1e-13, 1e-12);
    check(DSV_F64, DSV_KEEP_INPUT, true, 1e-13, 1e-12);
}

static void in_f32(void **state)
{
    (void)state;
    check(DSV_F32, DSV_KEEP_ALL, true, 1e-6, 1e-5);
    check(DSV_F32, DSV_KEEP_ATTENTION, false, 1e-6, 1e-5);
}

static void in_bf16(void **state)
{
    (void)state;
    check(DSV_BF16, DSV_KEEP_ALL, true, 1e-2, 3e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_f64),
        cmocka_unit_test(in_f32),
        cmocka_unit_test(in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
