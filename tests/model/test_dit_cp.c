/* The transformer with context parallelism, where each rank has a range of the tokens, against one rank that
 * has all tokens. Each rank returns the whole output, or its part of the loss; gradients are summed over the
 * ranks. In F64 rounding errors are so small that any other difference shows. */
#include "dit_case.h"
#include "dist/local_ranks.h"

enum { CASE_RANKS_MAX = 4 };

typedef struct Shared {
    DsviDtype act;
    DsviDitKeep keep;
    bool loss, given_first;
    int64_t head_ranks;
    DsviBackend backend[CASE_RANKS_MAX]; /* one for each rank's group */
    DsviCpGroup *group[CASE_RANKS_MAX];
    DsviCp *cp[CASE_RANKS_MAX];
    DitCase rank[CASE_RANKS_MAX];
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

/* Two samples with 3 x 4 x 5 tokens. */
static DsviDitShape shape_of(const Shared *shared)
{
    return (DsviDitShape){.batch = 2,
                          .frames = 3,
                          .height = 8,
                          .width = 10,
                          .text_len = 5,
                          .given_first = shared->given_first,
                          .act = shared->act,
                          .backward = true,
                          .keep = shared->keep,
                          .loss = shared->loss};
}

static void fill_case(DitCase *c, const DsviDitShape *shape, const DsvConfig *settings)
{
    DsviDitConfig config = dit_case_small_config();
    dit_case_open(c, &config, shape, shape->act == DSVI_F64 ? "ref" : "auto", 1, settings);
    float *flat = dit_case_random_weights(&c->table, 0.1);
    dit_case_set_weights(c, flat);
    free(flat);
    dit_case_randomise(c, 1);
}

static DsvStatus share(DsviComm *comm, void *context)
{
    Shared *shared = context;
    int64_t r = dsvi_comm_rank(comm);
    DsvConfig settings = dense_settings(shared->head_ranks);
    DsviDitShape shape = shape_of(shared);
    DsviDitConfig config = dit_case_small_config();
    DsviCpClip expected = dsvi_dit_cp_clip(&config, &shape, &settings);
    DSVI_TRY(dsvi_cpu_open(shared->act == DSVI_F64 ? "ref" : "auto", 1, &shared->backend[r]));
    DSVI_TRY(dsvi_cp_group_create(&shared->backend[r], comm, 0, &shared->group[r]));
    DSVI_TRY(dsvi_cp_create(shared->group[r], &expected, &shared->cp[r]));
    shape.cp = shared->cp[r];
    fill_case(&shared->rank[r], &shape, &settings);
    DSVI_TRY(dsvi_sparse_step_begin(shared->rank[r].sparse, 1, true));
    if (shared->loss)
        dit_case_loss_gradients(&shared->rank[r]);
    else
        dit_case_gradients(&shared->rank[r]);
    DSVI_TRY(dsvi_sparse_step_end(shared->rank[r].sparse));
    dsvi_cp_group_close(&shared->group[r]);
    return DSV_OK;
}

/* Compares an array of the single rank with the sum of the corresponding arrays of all ranks. */
static void compare_sum(const Shared *shared, int64_t ranks, const DitCase *one, const void *expected,
                        const void *const *part, int64_t n, double bound, const char *what)
{
    double *sum = calloc((size_t)n, sizeof *sum);
    assert_non_null(sum);
    for (int64_t r = 0; r < ranks; r++)
        for (int64_t i = 0; i < n; i++)
            sum[i] += dsvi_load(shared->rank[r].acc, part[r], i);
    assert_error_below(relative_l2(DSVI_F64, sum, one->acc, expected, n), bound, "%s, %d ranks, %d for heads",
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

/* The loss of a sample is the sum of the ranks' losses, each weighted with the rank's fraction of the
 * tokens. */
static void compare_losses(const Shared *shared, int64_t ranks, const DitCase *one, double bound)
{
    for (int64_t b = 0; b < one->shape.batch; b++) {
        double sum = 0, expected = dsvi_load(one->acc, one->loss, b);
        for (int64_t r = 0; r < ranks; r++)
            sum += dsvi_dit_token_fraction(shared->rank[r].dit) *
                   dsvi_load(shared->rank[r].acc, shared->rank[r].loss, b);
        assert_error_below(fabs(sum - expected), bound * expected, "loss of sample %d, %d ranks", (int)b,
                           (int)ranks);
    }
}

static void compare(const Shared *shared, int64_t ranks, const DitCase *one, double bound, double grad_bound)
{
    const void *latents[CASE_RANKS_MAX], *text[CASE_RANKS_MAX], *grad[CASE_RANKS_MAX];
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

static void check_frames(bool given_first, DsviDtype act, DsviDitKeep keep, bool loss, double bound,
                         double grad_bound)
{
    /* number of ranks, number of ranks that divide heads */
    static const int64_t layout[][2] = {{2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}};
    static Shared shared;
    DitCase one;
    shared = (Shared){.act = act, .keep = keep, .loss = loss, .given_first = given_first};
    DsvConfig settings = dense_settings(0);
    DsviDitShape shape = shape_of(&shared);
    shape.loss = given_first; /* otherwise the single rank computes the loss from its output */
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
            dsvi_cp_free(&shared.cp[r]);
            dsvi_cpu_close(&shared.backend[r]);
        }
    }
    dit_case_close(&one);
}

static void check(DsviDtype act, DsviDitKeep keep, bool loss, double bound, double grad_bound)
{
    check_frames(false, act, keep, loss, bound, grad_bound);
}

/* The tokens of the first frame, which have a time of their own and no loss, belong to few of the ranks. */
static void with_a_given_frame(void **state)
{
    (void)state;
    check_frames(true, DSVI_F64, DSVI_KEEP_INPUT, true, 1e-13, 1e-12);
}

static void in_f64(void **state)
{
    (void)state;
    check(DSVI_F64, DSVI_KEEP_ALL, false, 1e-13, 1e-12);
    check(DSVI_F64, DSVI_KEEP_INPUT, true, 1e-13, 1e-12);
}

static void in_f32(void **state)
{
    (void)state;
    check(DSVI_F32, DSVI_KEEP_ALL, true, 1e-6, 1e-5);
    check(DSVI_F32, DSVI_KEEP_ATTENTION, false, 1e-6, 1e-5);
}

static void in_bf16(void **state)
{
    (void)state;
    check(DSVI_BF16, DSVI_KEEP_ALL, true, 1e-2, 3e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_f64),
        cmocka_unit_test(in_f32),
        cmocka_unit_test(in_bf16),
        cmocka_unit_test(with_a_given_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
