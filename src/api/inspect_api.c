/* dsv_inspect (include/dsv/inspect.h): describes what a path contains in a few lines, and checks it. */
#include "dsv/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/model_path.h"
#include "run/pipeline_part.h"
#include "base/safetensors.h"
#include "data/clip.h"
#include "data/dataset.h"
#include "data/dataset_list.h"
#include "data/latent_cache.h"
#include "model/weights/weights.h"
#include "run/checkpoint.h"
#include "run/metrics_read.h"

enum { TENSORS_LISTED_MAX = 40 };
/* Numbers of steps over which DsviMetricsSummary (run/metrics_read.h) averages. */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

typedef struct Inspection {
    void (*line)(void *context, const char *text);
    void *context;
} Inspection;

DSVI_PRINTF(2, 3)
static void inspect_print(const Inspection *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    to->line(to->context, text);
}

/* Adds to *bad how many numbers of the tensor are not finite. Reads the file in pieces, because it is not
 * mapped. */
static DsvStatus count_not_finite(const DsviSafetensors *file, const DsviStoredTensor *tensor, int64_t *bad)
{
    enum { PIECE = 1 << 16 };
    _Alignas(8) unsigned char piece[PIECE];
    if (!dsvi_dtype_is_floating(tensor->dtype))
        return DSV_OK;
    for (size_t from = 0; from < tensor->bytes; from += PIECE) {
        size_t bytes = tensor->bytes - from < PIECE ? tensor->bytes - from : PIECE;
        DSVI_TRY(dsvi_safetensors_read(file, tensor, from, piece, bytes));
        for (size_t i = 0; i < bytes / dsvi_dtype_size(tensor->dtype); i++)
            *bad += !isfinite(dsvi_load(tensor->dtype, piece, (int64_t)i));
    }
    return DSV_OK;
}

static void inspect_shape_text(const DsviStoredTensor *tensor, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < tensor->ndim && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, i ? ", " : "",
                                 tensor->shape[i]);
}

static DsvStatus inspect_safetensors(const Inspection *to, const char *path)
{
    DsvStatus status = DSV_OK;
    DsviSafetensors *file;
    char shape[256];
    int64_t elements = 0, bad = 0;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &file));
    size_t count = dsvi_safetensors_count(file);
    for (size_t i = 0; i < count; i++)
        elements += dsvi_safetensors_at(file, i)->count;
    inspect_print(to, "%s: safetensors, %zu tensors, %" PRId64 " numbers", path, count, elements);
    for (size_t i = 0; i < count; i++) {
        const DsviStoredTensor *tensor = dsvi_safetensors_at(file, i);
        int64_t tensor_bad = 0;
        DSVI_TRY_GOTO(status, count_not_finite(file, tensor, &tensor_bad), done);
        bad += tensor_bad;
        if (i >= TENSORS_LISTED_MAX && tensor_bad == 0)
            continue;
        inspect_shape_text(tensor, shape, sizeof shape);
        inspect_print(to, "  %-64s %-4s (%s)%s", tensor->name, dsvi_dtype_name(tensor->dtype), shape,
                      tensor_bad ? "  NOT FINITE" : "");
    }
    if (count > TENSORS_LISTED_MAX)
        inspect_print(to, "  and %zu more", count - TENSORS_LISTED_MAX);
    if (bad)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " numbers are not finite", path, bad);
    else
        inspect_print(to, "health: all numbers are finite");
done:
    dsvi_safetensors_close(&file);
    return status;
}

static DsvStatus inspect_clip(const Inspection *to, const char *path)
{
    DsviClipInfo info;
    char remark[1024];
    DSVI_TRY(dsvi_clip_probe(path, &info));
    inspect_print(to,
                  "%s: clip, %s in %s, %" PRId64 " x %" PRId64 ", %.2f s at %.3f frames/s (about %" PRId64
                  " frames)",
                  path, info.codec, info.container, info.width, info.height, info.seconds, info.fps,
                  info.frames);
    if (dsvi_clip_oddities_text(path, &info, remark, sizeof remark))
        inspect_print(to, "%s", remark);
    return DSV_OK;
}

/* Reads all weights, to find missing tensors, wrong shapes and numbers that are not finite. */
static DsvStatus check_weights(const Inspection *to, const char *weights, const DsviParamTable *table)
{
    DsvStatus status;
    int64_t bad = 0;
    float *flat = calloc((size_t)table->elements, sizeof *flat);
    if (!flat)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read %" PRId64 " parameters", weights,
                         table->parameters);
    DSVI_TRY_GOTO(status, dsvi_weights_read(weights, table, flat), done);
    for (int64_t i = 0; i < table->elements; i++)
        bad += !isfinite(flat[i]);
    if (bad)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " weights are not finite", weights, bad);
    else
        inspect_print(to, "health: all %" PRId64 " tensors there, all numbers finite", table->count);
done:
    free(flat);
    return status;
}

static DsvStatus inspect_model(const Inspection *to, const DsviModelPath *model)
{
    DsviDitConfig config;
    DsviParamTable table;
    DSVI_TRY(dsvi_dit_config_read(model->config, &config));
    DSVI_TRY(dsvi_param_table_make(&config, &table));
    inspect_print(to, "%s: Wan 2.1 transformer, %" PRId64 " parameters", model->weights, table.parameters);
    inspect_print(to, "  %" PRId64 " blocks, %" PRId64 " heads x %" PRId64 ", feed-forward %" PRId64,
                  config.num_layers, config.num_attention_heads, config.attention_head_dim, config.ffn_dim);
    inspect_print(to,
                  "  latent channels %" PRId64 " in, %" PRId64 " out, patch %" PRId64 " x %" PRId64
                  " x %" PRId64 ", text rows of %" PRId64,
                  config.in_channels, config.out_channels, config.patch[0], config.patch[1], config.patch[2],
                  config.text_dim);
    DsvStatus status = check_weights(to, model->weights, &table);
    dsvi_param_table_free(&table);
    return status;
}

static DsvStatus inspect_checkpoint(const Inspection *to, const DsviModelPath *model)
{
    DsviCheckpointState state;
    DSVI_TRY(dsvi_checkpoint_state(model->checkpoint, &state));
    inspect_print(to, "%s: checkpoint of step %" PRId64 ", %" PRIu64 " samples seen, seed %" PRId64,
                  model->checkpoint, state.step, state.sample, state.seed);
    DSVI_TRY(dsvi_checkpoint_verify(model->checkpoint));
    inspect_print(to, "health: every file is as the manifest says");
    return inspect_model(to, model);
}

static DsvStatus inspect_run(const Inspection *to, const char *path, const char *metrics)
{
    DsviMetricsSummary summary;
    DsviModelPath model;
    DSVI_TRY(dsvi_metrics_summarise(metrics, &summary));
    if (summary.last_step <= FIRST_STEPS)
        inspect_print(to, "%s: run, %" PRId64 " step%s; mean loss %.4f", path, summary.last_step,
                      summary.last_step == 1 ? "" : "s", summary.last_loss);
    else
        inspect_print(to,
                      "%s: run, %" PRId64 " steps; loss %.4f over the first %d, %.4f over the last %" PRId64,
                      path, summary.last_step, summary.first_loss, FIRST_STEPS, summary.last_loss,
                      summary.last_step < LAST_STEPS ? summary.last_step : LAST_STEPS);
    DSVI_TRY(dsvi_model_find(path, &model));
    return inspect_checkpoint(to, &model);
}

static DsvStatus inspect_cache(const Inspection *to, const char *path)
{
    DsvStatus status = DSV_OK;
    DsviLatentCache *cache;
    DSVI_TRY(dsvi_latent_cache_open(path, NULL, &cache));
    int64_t count = dsvi_latent_cache_count(cache);
    inspect_print(to, "%s: latent cache, %" PRId64 " window%s", path, count, count == 1 ? "" : "s");
    for (int64_t i = 0; i < count && i < 3; i++)
        inspect_print(to, "  %s", dsvi_latent_cache_file(cache, i));
    if (count > 3)
        inspect_print(to, "  and %" PRId64 " more", count - 3);
    for (int64_t i = 0; i < count && status == DSV_OK; i++)
        status = dsvi_latent_cache_check(cache, i);
    if (status == DSV_OK)
        inspect_print(to, "health: every window is as the index says");
    dsvi_latent_cache_close(&cache);
    return status;
}

/* Describes a folder of clips or a file that lists clips. */
static DsvStatus inspect_clips(const Inspection *to, const char *path)
{
    DsviDataset *dataset;
    DsvConfig settings;
    double seconds = 0;
    int64_t captions = 0;
    dsv_config_defaults(&settings);
    DSVI_TRY(dsvi_dataset_open(path, &settings, &dataset));
    for (int64_t i = 0; i < dataset->count; i++) {
        seconds += dataset->items[i].info.seconds;
        captions += dataset->items[i].text != NULL;
    }
    inspect_print(to,
                  "%s: %" PRId64 " clip%s, %.1f s in all, %" PRId64
                  " with a caption: data for dsv train, encode",
                  path, dataset->count, dataset->count == 1 ? "" : "s", seconds, captions);
    for (int64_t i = 0; i < dataset->left_out_count; i++)
        inspect_print(to, "  left out: %s", dataset->left_out[i]);
    for (int64_t i = 0; i < dataset->remark_count; i++)
        inspect_print(to, "  %s", dataset->remarks[i]);
    dsvi_dataset_close(&dataset);
    return DSV_OK;
}

static DsvStatus inspect_folder(const Inspection *to, const char *path)
{
    char metrics[DSVI_PATH_MAX];
    const char *part;
    DsviModelPath model;
    if (dsvi_latent_cache_is(path))
        return inspect_cache(to, path);
    DSVI_TRY(dsvi_path_join(metrics, path, "metrics.jsonl"));
    if (dsvi_path_exists(metrics))
        return inspect_run(to, path, metrics);
    if ((part = dsvi_pipeline_part(path))) {
        inspect_print(to, "%s: %s of a published pipeline, which this version of dsv cannot use", path, part);
        return DSV_OK;
    }
    if (dsvi_pipeline_is(path))
        inspect_print(to, "%s: a published pipeline, of which this version of dsv uses transformer/ alone",
                      path);
    DsvStatus status = dsvi_model_find(path, &model);
    if (status == DSV_E_NOT_FOUND && inspect_clips(to, path) == DSV_OK)
        return DSV_OK;
    if (status == DSV_E_NOT_FOUND)
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: neither a run, a checkpoint, a model, a latent cache nor a "
                         "folder of clips",
                         path);
    DSVI_TRY(status);
    return model.checkpoint[0] ? inspect_checkpoint(to, &model) : inspect_model(to, &model);
}

DsvStatus dsv_inspect(const char *path, void (*line)(void *context, const char *text), void *context)
{
    Inspection to = {line, context};
    const char *dot = strrchr(path, '.');
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such file or folder", path);
    if (dsvi_path_is_folder(path))
        return inspect_folder(&to, path);
    if (dot && strcmp(dot, ".safetensors") == 0)
        return inspect_safetensors(&to, path);
    if (dsvi_list_is(path))
        return inspect_clips(&to, path);
    DSVI_TRY(dsvi_model_refuse_pickle(path));
    return inspect_clip(&to, path);
}
