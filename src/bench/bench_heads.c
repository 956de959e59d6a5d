/* Implements bench_heads.h: fills q, k and v (queries, keys, values) for benchmarks of attention. */
#include "bench/bench_heads.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/threads.h"

DsvStatus dsvi_bench_set(DsvConfig *settings, const char *format, ...)
{
    char assignment[256];
    va_list args;
    va_start(args, format);
    vsnprintf(assignment, sizeof assignment, format, args);
    va_end(args);
    return dsv_config_set(settings, assignment);
}

DsvBenchLists dsvi_bench_lists_defaults(void)
{
    return (DsvBenchLists){.repeats = 5, .dtype = "bf16"};
}

DsvStatus dsvi_bench_lists_check(const DsvBenchLists *l, const DsvConfig *settings)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"tokens", l->tokens},
                 {"heads", l->heads},
                 {"head size", l->head_dim},
                 {"group", l->group},
                 {"grain", l->grain}};
    if (!settings->sparse_enabled)
        return DSVI_FAIL(DSV_E_USAGE, "attention over lists, and sparse.enabled is false");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0)
            return DSVI_FAIL(DSV_E_USAGE, "%s %lld, expected none below 0", sizes[i].name,
                             (long long)sizes[i].value);
    if (l->repeats < 1 || l->repeats > DSVI_BENCH_REPEATS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "repeats %lld, expected 1 to %d", (long long)l->repeats,
                         DSVI_BENCH_REPEATS_MAX);
    if (strcmp(l->selector ? l->selector : settings->sparse_selector, "predictor") == 0)
        return DSVI_FAIL(DSV_E_USAGE, "selector predictor, expected projection, pooled or window: the "
                                      "predictor needs hidden states, and the benchmark has none");
    return l->density >= 0 && l->density <= 1
               ? DSV_OK
               : DSVI_FAIL(DSV_E_USAGE, "density %.15g, expected above 0, at most 1", l->density);
}

DsvStatus dsvi_bench_lists_set(DsvConfig *settings, const DsvBenchLists *l)
{
    if (l->selector)
        DSVI_TRY(dsvi_bench_set(settings, "sparse.selector=%s", l->selector));
    if (l->group > 0)
        DSVI_TRY(dsvi_bench_set(settings, "sparse.group=%lld", (long long)l->group));
    if (l->grain > 0)
        DSVI_TRY(dsvi_bench_set(settings, "sparse.grain=%lld", (long long)l->grain));
    if (l->density > 0) {
        DSVI_TRY(dsvi_bench_set(settings, "sparse.target_density=%.17g", l->density));
        DSVI_TRY(dsvi_bench_set(settings, "sparse.min_keys=0"));
    }
    DSVI_TRY(dsvi_bench_set(settings, "sparse.target_mass=0"));
    DSVI_TRY(dsvi_bench_set(settings, "sparse.measure_cost=false"));
    DSVI_TRY(dsvi_bench_set(settings, "sparse.list_memory=1"));
    return dsvi_bench_set(
        settings, "sparse.offload_lists=false"); /* benchmarks read the key lists on the device at the end */
}

DsvStatus dsvi_bench_dtype(const char *name, DsviDtype *dtype)
{
    *dtype = strcmp(name, "bf16") == 0 ? DSVI_BF16 : DSVI_F32;
    return *dtype == DSVI_BF16 || strcmp(name, "f32") == 0
               ? DSV_OK
               : DSVI_FAIL(DSV_E_USAGE, "dtype %s, expected bf16 or f32", name);
}

/* Reads the grid of the tokens from the file's metadata. Without metadata, all tokens form one row. */
static DsvStatus bench_heads_read_grid(const DsviSafetensors *file, int64_t tokens, int64_t grid[3])
{
    const char *words = dsvi_safetensors_metadata(file, "grid");
    long long frames = 1, rows = 1, columns = tokens;
    bool read = !words || sscanf(words, "%lldx%lldx%lld", &frames, &rows, &columns) == 3;
    /* Dividing step by step checks that the product is `tokens` without computing a product that may
     * overflow. */
    if (!read || frames < 1 || tokens % frames != 0 || rows < 1 || tokens / frames % rows != 0 ||
        tokens / frames / rows != columns)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: grid %s, expected FxHxW with %lld cells",
                         dsvi_safetensors_path(file), words, (long long)tokens);
    grid[0] = frames;
    grid[1] = rows;
    grid[2] = columns;
    return DSV_OK;
}

static DsvStatus bench_heads_open_file(const char *path, DsviBenchHeads *h)
{
    const DsviStoredTensor *q, *other;
    DSVI_TRY(dsvi_safetensors_open(path, &h->file));
    DSVI_TRY(dsvi_safetensors_require_floating(h->file, "q", 3, (int64_t[]){-1, -1, -1}, &q));
    DSVI_TRY(dsvi_safetensors_require_floating(h->file, "k", 3, q->shape, &other));
    DSVI_TRY(dsvi_safetensors_require_floating(h->file, "v", 3, q->shape, &other));
    int64_t heads = q->shape[0], tokens = q->shape[1];
    if (heads < 1 || tokens < 1 || h->tokens % tokens != 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: %lld heads of %lld tokens; expected some, and --tokens a multiple "
                         "of them, not %lld",
                         path, (long long)heads, (long long)tokens, (long long)h->tokens);
    if (h->head_dim > 0 && h->head_dim != q->shape[2])
        return DSVI_FAIL(DSV_E_USAGE, "%s: heads of %lld elements; expected %lld, the --head-dim", path,
                         (long long)q->shape[2], (long long)h->head_dim);
    DSVI_TRY(bench_heads_read_grid(h->file, tokens, h->grid));
    h->tokens = h->tokens > 0 ? h->tokens : tokens;
    h->heads = h->heads > 0 ? h->heads : heads;
    h->head_dim = q->shape[2];
    h->grid[0] *= h->tokens / tokens;
    return DSV_OK;
}

DsvStatus dsvi_bench_heads_open(const DsvBenchLists *lists, DsviBenchHeads *h)
{
    *h = (DsviBenchHeads){.tokens = lists->tokens, .heads = lists->heads, .head_dim = lists->head_dim};
    if (lists->heads_from)
        return bench_heads_open_file(lists->heads_from, h);
    h->tokens = h->tokens > 0 ? h->tokens : 8192;
    h->heads = h->heads > 0 ? h->heads : 4;
    h->head_dim = h->head_dim > 0 ? h->head_dim : 64;
    h->grid[0] = h->grid[1] = 1;
    h->grid[2] = h->tokens;
    return DSV_OK;
}

void dsvi_bench_heads_close(DsviBenchHeads *h)
{
    dsvi_safetensors_close(&h->file);
}

/* State of dsvi_bench_heads_fill. */
typedef struct Filling {
    const DsviBenchFill *args;
    const DsviStoredTensor *stored; /* (N, S, D) in raster order; NULL: random numbers */
    DsviRng rng;
} Filling;

static double stored_value(const DsviStoredTensor *tensor, int64_t head, int64_t token, int64_t d)
{
    int64_t row = head % tensor->shape[0] * tensor->shape[1] + token % tensor->shape[1];
    return dsvi_load(tensor->dtype, tensor->data, row * tensor->shape[2] + d);
}

static void fill_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    const Filling *f = context;
    const DsviBenchFill *a = f->args;
    int64_t heads = a->heads->heads, dim = a->heads->head_dim;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dim; d++) {
                int64_t token = a->first + i;
                double value = f->stored ? stored_value(f->stored, h, a->order[token], d)
                                         : dsvi_rng_normal(f->rng, (uint64_t)((token * heads + h) * dim + d));
                dsvi_store(a->act, a->host, (i * heads + h) * dim + d, value);
            }
}

void dsvi_bench_heads_fill(const DsviBenchFill *fill)
{
    static const char *const names[] = {"q", "k", "v", NULL};
    const char *name = names[fill->tensor];
    DsviSafetensors *file = fill->heads->file;
    Filling f = {
        .args = fill,
        .rng = {fill->seed, DSVI_RNG_TEST, fill->tensor},
        .stored = file && name ? dsvi_safetensors_find(file, name) : NULL,
    };
    dsvi_parallel_for(fill->count, 64, fill_tokens, &f);
}
