/* The public attention interface (dsv/attention.h): equality with a plain sum, strides, lists, passes that
 * are repeated or replaced, state files, and calls that must be refused. */
#include "test.h"

#include "base/rng.h"
#include "base/scratch.h"
#include "dsv/attention.h"

enum { BLOCKS = 3, BATCH = 2, HEADS = 2, DIM = 32, FRAMES = 4, ROWS = 6, COLUMNS = 8 };
enum { TOKENS = FRAMES * ROWS * COLUMNS, COUNT = BATCH * TOKENS * HEADS * DIM, LSE = BATCH * HEADS * TOKENS };

/* The tensors of one block. q, k and v are parts of `fused` (B, S, 3, N, D), as a fused projection makes. */
typedef struct Tensors {
    float fused[3 * COUNT], hidden[COUNT], out[COUNT], dout[COUNT], dq[COUNT], dk[COUNT], dv[COUNT];
    float lse[LSE];
} Tensors;

static Tensors tensors[BLOCKS], others[BLOCKS];

static DsvConfig config_of(const char *const *assignments, size_t count)
{
    static const char *const common[] = {"sparse.measure_cost=false",
                                         "sparse.group=16",
                                         "sparse.chunk=16",
                                         "sparse.rank=8",
                                         "sparse.grain=1",
                                         "sparse.tail=none",
                                         "sparse.dense_finish=0",
                                         "sparse.target_mass=0.9",
                                         "sparse.target_density=0.2",
                                         "sparse.min_keys=0",
                                         "threads=2",
                                         "sparse.min_mass=0.05",
                                         "sparse.min_head_mass=0",
                                         "seed=5"};
    DsvConfig config;
    dsv_config_defaults(&config);
    assert_ok(dsv_config_set_all(&config, common, sizeof common / sizeof *common));
    assert_ok(dsv_config_set_all(&config, assignments, count));
    return config;
}

static DsvAttentionShape shape_of(void)
{
    return (DsvAttentionShape){.blocks = BLOCKS,
                               .batch = BATCH,
                               .heads = HEADS,
                               .head_dim = DIM,
                               .grid = {FRAMES, ROWS, COLUMNS},
                               .dtype = DSV_F32,
                               .backward = true};
}

static void fill(Tensors *t, uint32_t stream)
{
    DsviRng rng = {9, DSVI_RNG_TEST, stream};
    memset(t, 0xff, sizeof *t); /* NaN, so that what is read without being written shows */
    for (uint64_t i = 0; i < 3 * COUNT; i++)
        t->fused[i] = 2 * (float)dsvi_rng_normal(rng, i);
    for (uint64_t i = 0; i < COUNT; i++)
        t->dout[i] = t->hidden[i] = (float)dsvi_rng_normal(rng, 3 * COUNT + i);
}

static void fill_all(void)
{
    for (int i = 0; i < BLOCKS; i++)
        fill(&tensors[i], (uint32_t)i);
}

static DsvRows whole(float *data)
{
    return (DsvRows){data, (int64_t)TOKENS * HEADS * DIM, (int64_t)HEADS * DIM, DIM};
}

static DsvRows part_of(Tensors *t, int part)
{
    return (DsvRows){t->fused + part * HEADS * DIM, (int64_t)TOKENS * 3 * HEADS * DIM,
                     (int64_t)3 * HEADS * DIM, DIM};
}

static DsvAttentionCall call_of(Tensors *t)
{
    return (DsvAttentionCall){.scale = 1 / sqrt(DIM),
                              .q = part_of(t, 0),
                              .k = part_of(t, 1),
                              .v = part_of(t, 2),
                              .hidden = t->hidden,
                              .out = whole(t->out),
                              .lse = t->lse,
                              .dout = whole(t->dout),
                              .dq = whole(t->dq),
                              .dk = whole(t->dk),
                              .dv = whole(t->dv)};
}

typedef struct Opened {
    DsvDevice *device;
    DsvAttention *attention;
} Opened;

static Opened open_shape(const DsvConfig *config, const DsvAttentionShape *shape)
{
    Opened o;
    assert_ok(dsv_device_open(config, 0, &o.device));
    assert_ok(dsv_attention_create(o.device, config, shape, NULL, NULL, &o.attention));
    assert_ok(dsv_attention_bind(o.attention, NULL, 0, NULL));
    return o;
}

static Opened open_config(const DsvConfig *config)
{
    DsvAttentionShape shape = shape_of();
    return open_shape(config, &shape);
}

static void close_all(Opened *o)
{
    dsv_attention_free(&o->attention);
    dsv_attention_free(&o->attention);
    dsv_device_close(&o->device);
    dsv_device_close(&o->device);
}

static void run_forward(Opened *o, Tensors *t)
{
    for (int i = 0; i < BLOCKS; i++) {
        DsvAttentionCall call = call_of(&t[i]);
        assert_ok(dsv_attention_forward(o->attention, i, &call));
    }
}

static void run_backward(Opened *o, Tensors *t)
{
    for (int i = BLOCKS - 1; i >= 0; i--) {
        DsvAttentionCall call = call_of(&t[i]);
        assert_ok(dsv_attention_backward(o->attention, i, &call));
    }
}

static void run_step(Opened *o, int64_t step)
{
    assert_ok(dsv_attention_step_begin(o->attention, step, true, NULL));
    run_forward(o, tensors);
    run_backward(o, tensors);
    assert_ok(dsv_attention_step_end(o->attention, NULL));
}

/* out (B, S, N, D) of dense attention in double. */
static void plain_forward(Tensors *t, float *out)
{
    DsvRows q = part_of(t, 0), k = part_of(t, 1), v = part_of(t, 2);
    const float *x = q.data, *y = k.data, *z = v.data;
    for (int64_t row = 0; row < (int64_t)BATCH * TOKENS * HEADS; row++) {
        int64_t b = row / (TOKENS * HEADS), s = row / HEADS % TOKENS, h = row % HEADS;
        double sum = 0, mean[DIM] = {0};
        for (int64_t j = 0; j < TOKENS; j++) {
            double score = 0;
            int64_t at = b * q.batch_stride + h * DIM, other = at + j * q.token_stride;
            for (int d = 0; d < DIM; d++)
                score += (double)x[at + s * q.token_stride + d] * (double)y[other + d];
            double p = exp(score / sqrt(DIM));
            sum += p;
            for (int d = 0; d < DIM; d++)
                mean[d] += p * (double)z[other + d];
        }
        for (int d = 0; d < DIM; d++)
            out[row * DIM + d] = (float)(mean[d] / sum);
    }
}

static void test_dense_is_a_plain_sum(void **state)
{
    static const char *const off[] = {"sparse.enabled=false"};
    static float expected[COUNT];
    (void)state;
    DsvConfig config = config_of(off, 1);
    Opened o = open_config(&config);
    fill_all();
    run_step(&o, 1);
    for (int i = 0; i < BLOCKS; i++) {
        plain_forward(&tensors[i], expected);
        assert_error_below(relative_l2(DSVI_F32, tensors[i].out, DSVI_F32, expected, COUNT), 2e-6,
                           "dense attention, block %d", i);
    }
    close_all(&o);
}

/* Attention over the object's lists and dsv_lists_forward and _backward over the same lists have equal bits;
 * the second time q, k and v are contiguous. */
static void test_lists_by_hand(void **state)
{
    static float rows[3][COUNT];
    static Tensors t;
    DsvLists lists;
    size_t bytes;
    (void)state;
    DsvConfig config = config_of(NULL, 0);
    Opened o = open_config(&config);
    fill_all();
    assert_ok(dsv_attention_force(o.attention, true));
    assert_ok(dsv_attention_step_begin(o.attention, 1, true, NULL));
    run_forward(&o, tensors);
    for (int i = 0; i < BLOCKS; i++) {
        assert_ok(dsv_attention_lists(o.attention, i, &lists));
        int64_t count = lists.batch * lists.heads * (lists.queries / lists.group);
        assert_true(lists.offsets[count] > 0 && lists.offsets[count] < count * TOKENS / 2);
        fill(&t, (uint32_t)i);
        DsvAttentionCall call = call_of(&t);
        for (int64_t j = 0; j < COUNT; j++)
            for (int p = 0; p < 3; p++)
                rows[p][j] = t.fused[(j / (HEADS * DIM) * 3 + p) * HEADS * DIM + j % (HEADS * DIM)];
        call.q = whole(rows[0]), call.k = whole(rows[1]), call.v = whole(rows[2]);
        assert_ok(dsv_lists_workspace(o.device, DSV_F32, DIM, &lists, true, &bytes));
        assert_ok(dsv_lists_forward(o.device, DSV_F32, DIM, &lists, &call));
        assert_memory_equal(t.out, tensors[i].out, sizeof t.out);
        assert_memory_equal(t.lse, tensors[i].lse, sizeof t.lse);
        assert_ok(dsv_lists_backward(o.device, DSV_F32, DIM, &lists, &call));
        DsvAttentionCall of_block = call_of(&tensors[i]);
        assert_ok(dsv_attention_backward(o.attention, i, &of_block));
        assert_memory_equal(t.dq, tensors[i].dq, sizeof t.dq);
        assert_memory_equal(t.dk, tensors[i].dk, sizeof t.dk);
        assert_memory_equal(t.dv, tensors[i].dv, sizeof t.dv);
    }
    close_all(&o);
}

static void test_wrong_lists(void **state)
{
    static int64_t offsets[BATCH * HEADS * TOKENS / 16 + 1];
    static int32_t spans[4] = {0, 5, 5, 7};
    (void)state;
    DsvConfig config = config_of(NULL, 0);
    Opened o = open_config(&config);
    fill_all();
    DsvAttentionCall call = call_of(&tensors[0]);
    DsvLists lists = {BATCH, HEADS, TOKENS, TOKENS, 16, 1, 4, offsets, spans};
    for (size_t i = 1; i < sizeof offsets / sizeof *offsets; i++)
        offsets[i] = 4;
    assert_fails(DSV_E_FORMAT, "list 0: span 5 after span 5",
                 dsv_lists_forward(o.device, DSV_F32, DIM, &lists, &call));
    spans[2] = TOKENS;
    assert_fails(DSV_E_FORMAT, "expected ascending numbers below 192",
                 dsv_lists_forward(o.device, DSV_F32, DIM, &lists, &call));
    offsets[3] = 5;
    spans[2] = 6;
    assert_fails(DSV_E_FORMAT, "list 2: offsets 4 and 5",
                 dsv_lists_backward(o.device, DSV_F32, DIM, &lists, &call));
    lists.group = 8;
    assert_fails(DSV_E_SHAPE, "group is 8, expected 16 to 1024",
                 dsv_lists_forward(o.device, DSV_F32, DIM, &lists, &call));
    assert_fails(DSV_E_SHAPE, "lists are missing", dsv_lists_forward(o.device, DSV_F32, DIM, NULL, &call));
    close_all(&o);
}

/* Recomputation repeats the bits of the pass, with memory of the caller too. */
static void test_recompute(void **state)
{
    DsvAttentionMemory memory;
    (void)state;
    DsvConfig config = config_of(NULL, 0);
    DsvAttentionShape shape = shape_of();
    Opened o;
    assert_ok(dsv_device_open(&config, 0, &o.device));
    assert_ok(dsv_attention_create(o.device, &config, &shape, NULL, NULL, &o.attention));
    dsv_attention_memory(o.attention, &memory);
    void *kept = aligned_alloc(64, (memory.state_bytes + 63) / 64 * 64);
    void *workspace = aligned_alloc(64, (memory.workspace_bytes + 63) / 64 * 64);
    assert_fails(DSV_E_SHAPE, "state memory",
                 dsv_attention_bind(o.attention, kept, memory.state_bytes - 1, NULL));
    assert_ok(dsv_attention_bind(o.attention, kept, memory.state_bytes, NULL));
    assert_fails(DSV_E_USAGE, "has memory already", dsv_attention_bind(o.attention, NULL, 0, NULL));
    assert_ok(dsv_attention_force(o.attention, true));
    fill_all();
    assert_ok(dsv_attention_step_begin(o.attention, 1, true, NULL));
    run_forward(&o, tensors);
    memcpy(others, tensors, sizeof others);
    for (int i = BLOCKS - 1; i >= 0; i--) {
        DsvAttentionCall call = call_of(&tensors[i]);
        call.recompute = true;
        call.workspace = workspace;
        call.workspace_bytes = memory.workspace_bytes;
        memset(tensors[i].out, 0xff, sizeof tensors[i].out);
        assert_ok(dsv_attention_forward(o.attention, i, &call));
        assert_int_equal(call.pass, 1);
        assert_memory_equal(tensors[i].out, others[i].out, sizeof tensors[i].out);
        assert_ok(dsv_attention_backward(o.attention, i, &call));
        assert_fails(DSV_E_USAGE, "are used already", dsv_attention_forward(o.attention, i, &call));
        call.workspace_bytes = 1;
        assert_fails(DSV_E_SHAPE, "the workspace has 1 bytes", dsv_attention_backward(o.attention, i, &call));
    }
    close_all(&o);
    free(kept);
    free(workspace);
}

static void test_order_of_calls(void **state)
{
    (void)state;
    DsvConfig config = config_of(NULL, 0);
    Opened o = open_config(&config);
    fill_all();
    DsvAttentionCall call = call_of(&tensors[0]);
    assert_fails(DSV_E_USAGE, "outside a step", dsv_attention_forward(o.attention, 0, &call));
    assert_fails(DSV_E_USAGE, "ends before it has begun", dsv_attention_step_end(o.attention, NULL));
    assert_fails(DSV_E_USAGE, "step is 0", dsv_attention_step_begin(o.attention, 0, true, NULL));
    assert_ok(dsv_attention_step_begin(o.attention, 1, true, NULL));
    assert_fails(DSV_E_USAGE, "begins before", dsv_attention_step_begin(o.attention, 2, true, NULL));
    assert_fails(DSV_E_USAGE, "no forward pass yet", dsv_attention_backward(o.attention, 0, &call));
    assert_fails(DSV_E_USAGE, "block 1 runs forward, expected block 0",
                 dsv_attention_forward(o.attention, 1, &call));
    assert_fails(DSV_E_SHAPE, "block 3 does not exist", dsv_attention_forward(o.attention, 3, &call));
    assert_ok(dsv_attention_forward(o.attention, 0, &call));
    assert_int_equal(call.pass, 1);
    assert_ok(dsv_attention_forward(o.attention, 0, &call));
    assert_int_equal(call.pass, 2);
    call.pass = 1;
    assert_fails(DSV_E_USAGE, "forward pass 2 replaced its key lists",
                 dsv_attention_backward(o.attention, 0, &call));
    call.pass = 2;
    assert_ok(dsv_attention_backward(o.attention, 0, &call));
    call.k.data = NULL;
    assert_fails(DSV_E_SHAPE, "tensor k is missing", dsv_attention_forward(o.attention, 0, &call));
    call = call_of(&tensors[0]);
    call.out.head_stride = DIM - 1;
    assert_fails(DSV_E_SHAPE, "tensor out has strides", dsv_attention_forward(o.attention, 0, &call));
    call = call_of(&tensors[0]);
    call.q.data = (char *)call.q.data + 2;
    assert_fails(DSV_E_SHAPE, "q is not aligned", dsv_attention_forward(o.attention, 0, &call));
    close_all(&o);
}

static void refuse_shape(const char *words, const DsvAttentionShape *shape, const DsvConfig *config)
{
    DsvDevice *device;
    DsvAttention *attention;
    assert_ok(dsv_device_open(config, 0, &device));
    DsvStatus status = dsv_attention_create(device, config, shape, NULL, NULL, &attention);
    assert_true(status != DSV_OK && attention == NULL);
    if (!strstr(dsv_error_message(), words))
        fail_msg("message lacks '%s': %s", words, dsv_error_message());
    dsv_device_close(&device);
}

static void test_wrong_shapes(void **state)
{
    (void)state;
    int32_t order[4];
    DsvConfig config = config_of(NULL, 0);
    DsvAttentionShape shape = shape_of();
    shape.head_dim = 33;
    refuse_shape("head size is 33", &shape, &config);
    shape = shape_of();
    shape.grid[2] = 0;
    refuse_shape("number of columns is 0", &shape, &config);
    shape.grid[0] = shape.grid[1] = shape.grid[2] = 1 << 20;
    refuse_shape("more than 2^31 - 1 tokens", &shape, &config);
    shape = shape_of();
    shape.dtype = DSV_F64;
    refuse_shape("F64, which needs device=cpu and isa=ref", &shape, &config);
    shape.dtype = (DsvDtype)77;
    refuse_shape("dtype number 77", &shape, &config);
    assert_fails(DSV_E_SHAPE, "has 4 entries, a grid of 1 x 2 x 3 needs 6",
                 dsv_token_order(&config, (const int64_t[]){1, 2, 3}, order, 4));
    assert_fails(DSV_E_SHAPE, "a grid of 0 x 2 x 2",
                 dsv_token_order(&config, (const int64_t[]){0, 2, 2}, order, 4));
    assert_ok(dsv_token_order(&config, (const int64_t[]){1, 2, 2}, order, 4));
    assert_int_equal(order[0] + order[1] + order[2] + order[3], 6);
}

/* Trains until blocks are sparse; state files and copies restore reports and the lists of the next pass. */
static void test_state(void **state)
{
    const char *path = scratch_path("sparse.safetensors");
    DsvAttentionReport report, loaded;
    DsvAttentionBlockReport block;
    float captured[HEADS];
    DsvLists lists;
    (void)state;
    DsvConfig config = config_of(NULL, 0);
    Opened o = open_config(&config), other = open_config(&config), small;
    fill_all();
    for (int step = 1; step <= 3; step++)
        run_step(&o, step);
    dsv_attention_report(o.attention, &report);
    assert_int_equal(report.sparse_blocks, BLOCKS);
    assert_true(report.captured_mass > 0.05 && report.captured_mass < 1 && report.density < 0.5);
    assert_ok(dsv_attention_block_report(o.attention, 2, &block, captured));
    assert_true(block.sparse && block.over_lists && block.changes == 1);
    assert_error_below(fabs((captured[0] + captured[1]) / 2 - block.captured_mass), 1e-5, "captured mass");
    assert_ok(dsv_attention_save(o.attention, path, NULL));
    assert_ok(dsv_attention_load(other.attention, path, NULL));
    dsv_attention_report(other.attention, &loaded);
    assert_int_equal(loaded.sparse_blocks, BLOCKS);
    assert_true(loaded.captured_mass == report.captured_mass);

    DsvAttentionShape shape = shape_of();
    shape.batch = 1;
    shape.grid[0] = 2;
    small.device = o.device;
    assert_ok(dsv_attention_create(o.device, &config, &shape, NULL, NULL, &small.attention));
    assert_ok(dsv_attention_bind(small.attention, NULL, 0, NULL));
    assert_fails(DSV_E_USAGE, "different devices",
                 dsv_attention_copy(small.attention, other.attention, NULL));
    assert_ok(dsv_attention_copy(small.attention, o.attention, NULL));
    dsv_attention_report(small.attention, &loaded);
    assert_int_equal(loaded.sparse_blocks, BLOCKS);
    assert_fails(DSV_E_NOT_FOUND, "block 0 has no lists", dsv_attention_lists(small.attention, 0, &lists));
    dsv_attention_free(&small.attention);

    run_step(&o, 4);
    memcpy(others, tensors, sizeof others);
    fill_all();
    run_step(&other, 4);
    for (int i = 0; i < BLOCKS; i++)
        assert_memory_equal(tensors[i].out, others[i].out, sizeof tensors[i].out);
    close_all(&o);
    close_all(&other);
}

/* With a tail blocks are judged by the output error; the last half of max_train_steps is dense. */
static void test_tail_and_finish(void **state)
{
    static const char *const tail[] = {"sparse.tail=query",       "sparse.max_error=9",
                                       "sparse.max_head_error=9", "sparse.min_mass=1",
                                       "max_train_steps=4",       "sparse.dense_finish=0.5",
                                       "sparse.target_mass=0",    "sparse.tail_chunk=0"};
    DsvAttentionReport report;
    DsvAttentionBlockReport block;
    (void)state;
    DsvConfig config = config_of(tail, sizeof tail / sizeof *tail);
    Opened o = open_config(&config);
    fill_all();
    for (int step = 1; step <= 4; step++) {
        run_step(&o, step);
        dsv_attention_report(o.attention, &report);
        assert_true(step == 2 ? report.density < 0.3 : report.density == 1);
        assert_int_equal(report.sparse_blocks, step <= 2 ? BLOCKS : 0);
        assert_true(step > 2 || (report.output_error > 0 && isfinite(report.output_error)));
        assert_ok(dsv_attention_block_report(o.attention, 1, &block, NULL));
        assert_true(block.output_error > 0 && isfinite(block.output_error));
    }
    close_all(&o);
}

static void test_no_lists_without_sparse(void **state)
{
    static const char *const off[] = {"sparse.enabled=false"};
    (void)state;
    DsvConfig config = config_of(off, 1);
    Opened o = open_config(&config);
    fill_all();
    assert_fails(DSV_E_USAGE, "sparse.enabled is false", dsv_attention_force(o.attention, true));
    assert_fails(DSV_E_USAGE, "sparse.enabled is false", dsv_attention_prescribe(o.attention, 0.5));
    assert_ok(dsv_attention_step_begin(o.attention, 1, true, NULL));
    run_forward(&o, tensors);
    memcpy(others, tensors, sizeof others);
    run_forward(&o, tensors);
    DsvAttentionCall call = call_of(&others[1]);
    call.pass = 1; /* dense passes can run backward in any order */
    assert_ok(dsv_attention_backward(o.attention, 1, &call));
    call = call_of(&tensors[0]);
    assert_ok(dsv_attention_forward(o.attention, 0, &call));
    assert_int_equal(call.pass, 0);
    close_all(&o);
}

static void test_prescribed_density(void **state)
{
    static const char *const topk[] = {"sparse.rule=topk"};
    DsvLists lists;
    (void)state;
    DsvConfig config = config_of(topk, 1);
    Opened o = open_config(&config);
    fill_all();
    assert_fails(DSV_E_USAGE, "density is 0", dsv_attention_prescribe(o.attention, 0));
    assert_ok(dsv_attention_prescribe(o.attention, 0.25));
    assert_ok(dsv_attention_step_begin(o.attention, 1, true, NULL));
    run_forward(&o, tensors);
    assert_ok(dsv_attention_lists(o.attention, 1, &lists));
    int64_t count = BATCH * HEADS * TOKENS / 16;
    assert_int_equal(lists.offsets[count], count * TOKENS / 4);
    close_all(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_is_a_plain_sum),
        cmocka_unit_test(test_lists_by_hand),
        cmocka_unit_test(test_wrong_lists),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_tail_and_finish),
        cmocka_unit_test(test_no_lists_without_sparse),
        cmocka_unit_test(test_prescribed_density),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
