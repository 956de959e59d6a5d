/* A transformer on the CPU for tests; see dit_case.h. The code reads and writes the CPU backend's device
 * memory directly. */
#include "dit_case.h"

#include "base/rng.h"

static void *take(DitCase *c, DsviArena *arena, DsviDtype dtype, int64_t n)
{
    (void)c;
    return dsvi_arena_take(arena, DSVI_MEM_DATA, (size_t)n * dsvi_dtype_size(dtype));
}

static void carve(DitCase *c, DsviArena *arena)
{
    DsviDtype acc = c->acc;
    int64_t flat = c->table.elements;
    c->weights.master = take(c, arena, acc, flat);
    c->weights.compute = c->shape.act == acc ? c->weights.master : take(c, arena, c->shape.act, flat);
    c->weights.grad = c->shape.backward && !c->shape.grad_begin ? take(c, arena, acc, flat) : NULL;
    c->latents = take(c, arena, acc, c->in_elements);
    c->dlatents = take(c, arena, acc, c->in_elements);
    c->timestep = take(c, arena, acc, c->times);
    c->loss = take(c, arena, acc, c->shape.batch);
    c->text = take(c, arena, acc, c->text_elements);
    c->dtext = take(c, arena, acc, c->text_elements);
    c->image = take(c, arena, acc, c->image_elements);
    c->dimage = take(c, arena, acc, c->image_elements);
    c->target = take(c, arena, acc, c->out_elements);
    c->output = take(c, arena, acc, c->out_elements);
    c->doutput = take(c, arena, acc, c->out_elements);
    if (c->sparse)
        dsvi_sparse_carve(c->sparse, arena);
    dsvi_dit_carve(c->dit, arena);
    dsvi_dit_carve_pass(c->dit, arena);
    if (c->shape.grad_begin)
        c->weights.grad = dsvi_dit_buffers(c->dit).grad;
}

/* Makes the weights of a block available as training does. In the backward pass it clears the gradients that
 * the pass adds to, and marks the others as fresh: the pass overwrites them. */
static DsvStatus acquire_weights(void *owner, DsviDitPass pass, int64_t bucket, DsviDitBucket *where)
{
    const DitCase *c = owner;
    const DsviParamTable *table = &c->table;
    size_t acc = dsvi_dtype_size(c->acc), begin = (size_t)table->begin[bucket] * acc;
    size_t gemm = (size_t)table->gemm[bucket];
    *where = (DsviDitBucket){
        .acc = (char *)c->weights.master + begin,
        .act = (char *)c->weights.compute + gemm * dsvi_dtype_size(c->shape.act),
        .grad = (char *)c->weights.grad + begin,
        .fresh = pass == DSVI_PASS_BACKWARD,
    };
    if (where->fresh)
        memset(where->grad, 0, gemm * acc - begin);
    return DSV_OK;
}

/* Provides host memory for kept activations that wait there. */
static void carve_kept(DitCase *c)
{
    DsviArena arena;
    dsvi_arena_plan(&arena);
    dsvi_dit_carve_host(c->dit, &arena);
    assert_ok(c->backend.device->host_alloc(c->backend.device, arena.used, &c->host_memory));
    dsvi_arena_bind(&arena, c->host_memory, arena.used);
    dsvi_dit_carve_host(c->dit, &arena);
}

static void open_case(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape, const char *isa,
                      int threads, const DsvConfig *settings)
{
    DsviArena arena;
    c->config = *config;
    c->shape = *shape;
    c->acc = shape->act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    int64_t places = shape->batch * shape->frames * shape->height * shape->width;
    c->in_elements = places * config->in_channels;
    c->out_elements = places * config->out_channels;
    c->text_elements = shape->batch * shape->text_len * config->text_dim;
    c->times = shape->batch * (shape->given_first ? 2 : 1);
    c->image_elements = shape->batch * shape->image_len * config->image_dim;
    assert_ok(dsvi_cpu_open(isa, threads, &c->backend));
    assert_ok(dsvi_param_table_make(config, &c->table));
    if (settings) {
        DsviSparseShape sparse_shape = dsvi_dit_sparse_shape(config, shape);
        assert_ok(dsvi_sparse_create(&c->backend, settings, &sparse_shape, NULL, NULL, &c->sparse));
    }
    assert_ok(dsvi_dit_create(&c->backend, config, &c->table, shape, c->sparse, &c->dit));
    if (c->kept)
        dsvi_dit_keep_blocks(c->dit, c->kept);
    carve_kept(c);
    dsvi_arena_plan(&arena);
    carve(c, &arena);
    assert_ok(c->backend.device->mem_alloc(c->backend.device, arena.used, &c->memory));
    memset(c->memory, 0xff, arena.used);
    dsvi_arena_bind(&arena, c->memory, arena.used);
    carve(c, &arena);
    assert_int_equal(arena.used, arena.size);
    if (shape->image_len > 0)
        dsvi_dit_set_image(c->dit, c->image, shape->lora ? NULL : c->dimage);
    if (c->sparse)
        assert_ok(dsvi_sparse_setup(c->sparse));
    if (c->shape.grad_begin) {
        c->weights.acquire = acquire_weights;
        c->weights.owner = c;
    }
    assert_ok(dsvi_dit_setup(c->dit, &c->weights));
}

void dit_case_open(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape, const char *isa,
                   int threads, const DsvConfig *settings)
{
    memset(c, 0, sizeof *c);
    open_case(c, config, shape, isa, threads, settings);
}

void dit_case_open_lora(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape, const char *isa,
                        const DsviDitWeights *lora)
{
    memset(c, 0, sizeof *c);
    c->weights.lora = lora;
    open_case(c, config, shape, isa, 2, NULL);
}

void dit_case_open_kept(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape,
                        const DsviDitKept *kept)
{
    memset(c, 0, sizeof *c);
    c->kept = kept;
    open_case(c, config, shape, "auto", 2, NULL);
}

void dit_case_close(DitCase *c)
{
    dsvi_dit_free(&c->dit);
    dsvi_sparse_free(&c->sparse);
    dsvi_param_table_free(&c->table);
    c->backend.device->mem_free(c->backend.device, c->memory);
    c->backend.device->host_free(c->backend.device, c->host_memory);
    dsvi_cpu_close(&c->backend);
}

void dit_case_set_weights(DitCase *c, const float *flat)
{
    dsvi_convert(c->acc, c->weights.master, DSVI_F32, flat, c->table.elements);
    assert_ok(dsvi_dit_refresh_compute(c->dit));
}

void dit_case_set(DitCase *c, void *array, const DsviSafetensors *file, const char *name)
{
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, name);
    assert_non_null(tensor);
    dsvi_convert(c->acc, array, tensor->dtype, tensor->data, tensor->count);
}

static void fill(const DitCase *c, void *array, int64_t n, DsviRng rng)
{
    for (int64_t i = 0; i < n; i++)
        dsvi_store(c->acc, array, i, (float)dsvi_rng_normal(rng, (uint64_t)i));
}

void dit_case_randomise(DitCase *c, uint32_t stream)
{
    DsviRng rng = {11, DSVI_RNG_TEST, 4 * stream};
    fill(c, c->latents, c->in_elements, rng);
    rng.stream++;
    fill(c, c->text, c->text_elements, rng);
    rng.stream++;
    fill(c, c->target, c->out_elements, rng);
    rng.stream++;
    fill(c, c->image, c->image_elements, (DsviRng){12, DSVI_RNG_TEST, stream});
    for (int64_t b = 0; b < c->times; b++)
        dsvi_store(c->acc, c->timestep, b, (float)(1000 * dsvi_rng_uniform(rng, (uint64_t)b)));
}

void dit_case_forward(DitCase *c)
{
    assert_ok(dsvi_dit_forward(c->dit, c->latents, c->timestep, c->text, c->output, NULL));
}

void dit_case_gradients(DitCase *c)
{
    DsviDevice *device = c->backend.device;
    size_t flat = (size_t)c->table.elements * dsvi_dtype_size(c->acc);
    DsviMseArgs mse = {
        .batch = c->shape.batch,
        .n = c->out_elements / c->shape.batch,
        .grad_scale = 1,
        .acc = c->acc,
        .output = c->output,
        .target = c->target,
        .loss = c->loss,
        .doutput = c->doutput,
    };
    if (c->shape.given_first) { /* the model knows which frames its loss leaves out */
        dit_case_forward(c);
        dit_case_loss_gradients(c);
        return;
    }
    assert_ok(device->clear(device->stream, c->weights.grad, flat));
    dit_case_forward(c);
    assert_ok(c->backend.ops.mse.run(device->stream, &mse));
    assert_ok(dsvi_dit_backward(c->dit, c->doutput, c->dlatents, c->dtext));
}

void dit_case_loss_gradients(DitCase *c)
{
    DsviDevice *device = c->backend.device;
    size_t flat = (size_t)c->table.elements * dsvi_dtype_size(c->acc);
    const DsviDitLoss loss = {.target = c->target, .grad_scale = 1, .loss = c->loss};
    assert_ok(device->clear(device->stream, c->weights.grad, flat));
    assert_ok(dsvi_dit_forward(c->dit, c->latents, c->timestep, c->text, NULL, &loss));
    assert_ok(dsvi_dit_backward(c->dit, NULL, c->dlatents, c->dtext));
}

double dit_case_loss(const DitCase *c)
{
    double sum = 0;
    for (int64_t b = 0; b < c->shape.batch; b++)
        sum += dsvi_load(c->acc, c->loss, b);
    return sum / (double)c->shape.batch;
}

const void *dit_case_grad(const DitCase *c, int64_t param)
{
    return (const char *)c->weights.grad + (size_t)c->table.params[param].offset * dsvi_dtype_size(c->acc);
}

void dit_case_assert_equal(const DitCase *a, const DitCase *b, bool grad)
{
    size_t size = dsvi_dtype_size(a->acc);
    assert_memory_equal(a->output, b->output, (size_t)a->out_elements * size);
    if (!grad)
        return;
    assert_memory_equal(a->dlatents, b->dlatents, (size_t)a->in_elements * size);
    assert_memory_equal(a->dtext, b->dtext, (size_t)a->text_elements * size);
    assert_memory_equal(a->dimage, b->dimage, (size_t)a->image_elements * size);
    assert_memory_equal(a->weights.grad, b->weights.grad, (size_t)a->table.elements * size);
}

DsviDitConfig dit_case_small_config(void)
{
    return (DsviDitConfig){
        .num_layers = 2,
        .num_attention_heads = 3,
        .attention_head_dim = 32,
        .ffn_dim = 70,
        .freq_dim = 18,
        .text_dim = 11,
        .text_len = 5,
        .in_channels = 3,
        .out_channels = 5,
        .patch = {1, 2, 2},
        .rope_max_seq_len = 64,
        .eps = 1e-6,
    };
}

DsviDitShape dit_case_small_shape(DsviDtype act)
{
    return (DsviDitShape){
        .batch = 2, .frames = 2, .height = 6, .width = 10, .text_len = 5, .act = act, .backward = true};
}

float *dit_case_random_weights(const DsviParamTable *table, double deviation)
{
    float *flat = calloc((size_t)table->elements, sizeof *flat);
    assert_non_null(flat);
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        DsviRng rng = {13, DSVI_RNG_TEST, 1000 + (uint32_t)i};
        double base = param->init == DSVI_INIT_ONE ? 1 : 0;
        for (int64_t j = 0; j < param->count; j++)
            flat[param->offset + j] = (float)(base + deviation * dsvi_rng_normal(rng, (uint64_t)j));
    }
    return flat;
}
