/* dsv_inspect: what a path is, in a few lines. See include/dsv/inspect.h. */
#include "dsv/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model_path.h"
#include "train/pipeline_part.h"
#include "base/safetensors.h"
#include "data/clip.h"
#include "data/dataset.h"
#include "data/dataset_list.h"
#include "data/latent_cache.h"
#include "model/weights.h"
#include "train/checkpoint.h"
#include "train/metrics_read.h"

enum { TENSORS_LISTED_MOST = 40 };
/* The steps whose mean losses a DsvMetricsSummary holds. */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

typedef struct Inspection {
    void (*line)(void *context, const char *text);
    void *context;
} Inspection;

DSVI_PRINTF(2, 3)
static void say(const Inspection *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    to->line(to->context, text);
}

/* Adds to *bad the numbers of the tensor that are not finite. In pieces, from an unmapped file. */
static DsvStatus count_not_finite(const DsvSafetensors *file, const DsvStoredTensor *tensor, int64_t *bad)
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

static void shape_text(const DsvStoredTensor *tensor, char *text, size_t room)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < tensor->ndim && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
}

static DsvStatus inspect_safetensors(const Inspection *to, const char *path)
{
    DsvStatus status = DSV_OK;
    DsvSafetensors *file;
    char shape[256];
    int64_t elements = 0, bad = 0;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &file));
    size_t count = dsvi_safetensors_count(file);
    for (size_t i = 0; i < count; i++)
        elements += dsvi_safetensors_at(file, i)->count;
    say(to, "%s: safetensors, %zu tensors, %" PRId64 " numbers", path, count, elements);
    for (size_t i = 0; i < count; i++) {
        const DsvStoredTensor *tensor = dsvi_safetensors_at(file, i);
        int64_t tensor_bad = 0;
        DSVI_TRY_GOTO(status, count_not_finite(file, tensor, &tensor_bad), done);
        bad += tensor_bad;
        if (i >= TENSORS_LISTED_MOST && tensor_bad == 0)
            continue;
        shape_text(tensor, shape, sizeof shape);
        say(to, "  %-64s %-4s (%s)%s", tensor->name, dsvi_dtype_name(tensor->dtype), shape,
            tensor_bad ? "  NOT FINITE" : "");
    }
    if (count > TENSORS_LISTED_MOST)
        say(to, "  and %zu more", count - TENSORS_LISTED_MOST);
    if (bad)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " numbers are not finite", path, bad);
    else
        say(to, "health: all numbers are finite");
done:
    dsvi_safetensors_close(&file);
    return status;
}

static DsvStatus inspect_clip(const Inspection *to, const char *path)
{
    DsvClipInfo info;
    char remark[1024];
    DSVI_TRY(dsvi_clip_probe(path, &info));
    say(to,
        "%s: clip, %s in %s, %" PRId64 " x %" PRId64 ", %.2f s at %.3f frames/s (about %" PRId64 " frames)",
        path, info.codec, info.container, info.width, info.height, info.seconds, info.fps, info.frames);
    if (dsvi_clip_remark(path, &info, remark, sizeof remark))
        say(to, "%s", remark);
    return DSV_OK;
}

/* Weights are read in full, so that a missing or misshapen tensor or a number that is not finite shows. */
static DsvStatus check_weights(const Inspection *to, const char *weights, const DsvParamTable *table)
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
        say(to, "health: all %" PRId64 " tensors there, all numbers finite", table->count);
done:
    free(flat);
    return status;
}

static DsvStatus inspect_model(const Inspection *to, const DsvModelPath *model)
{
    DsvDitConfig config;
    DsvParamTable table;
    DSVI_TRY(dsvi_dit_config_read(model->config, &config));
    DSVI_TRY(dsvi_param_table_make(&config, &table));
    say(to, "%s: Wan 2.1 transformer, %" PRId64 " parameters", model->weights, table.parameters);
    say(to, "  %" PRId64 " blocks, %" PRId64 " heads x %" PRId64 ", feed-forward %" PRId64,
        config.num_layers, config.num_attention_heads, config.attention_head_dim, config.ffn_dim);
    say(to, "  latent channels %" PRId64 " in, %" PRId64 " out, patch %" PRId64 " x %" PRId64 " x %" PRId64
        ", text rows of %" PRId64, config.in_channels, config.out_channels, config.patch[0],
        config.patch[1], config.patch[2], config.text_dim);
    DsvStatus status = check_weights(to, model->weights, &table);
    dsvi_param_table_free(&table);
    return status;
}

static DsvStatus inspect_checkpoint(const Inspection *to, const DsvModelPath *model)
{
    DsvCheckpointState state;
    DSVI_TRY(dsvi_checkpoint_state(model->checkpoint, &state));
    say(to, "%s: checkpoint of step %" PRId64 ", %" PRIu64 " samples seen, seed %" PRId64,
        model->checkpoint, state.step, state.sample, state.seed);
    DSVI_TRY(dsvi_checkpoint_verify(model->checkpoint));
    say(to, "health: every file is as the manifest says");
    return inspect_model(to, model);
}

static DsvStatus inspect_run(const Inspection *to, const char *path, const char *metrics)
{
    DsvMetricsSummary summary;
    DsvModelPath model;
    DSVI_TRY(dsvi_metrics_summarise(metrics, &summary));
    if (summary.last_step <= FIRST_STEPS)
        say(to, "%s: run, %" PRId64 " step%s; mean loss %.4f", path, summary.last_step,
            summary.last_step == 1 ? "" : "s", summary.last_loss);
    else
        say(to, "%s: run, %" PRId64 " steps; loss %.4f over the first %d, %.4f over the last %" PRId64, path,
            summary.last_step, summary.first_loss, FIRST_STEPS, summary.last_loss,
            summary.last_step < LAST_STEPS ? summary.last_step : LAST_STEPS);
    DSVI_TRY(dsvi_model_find(path, &model));
    return inspect_checkpoint(to, &model);
}

static DsvStatus inspect_cache(const Inspection *to, const char *path)
{
    DsvStatus status = DSV_OK;
    DsvLatentCache *cache;
    DSVI_TRY(dsvi_latent_cache_open(path, NULL, &cache));
    int64_t count = dsvi_latent_cache_count(cache);
    say(to, "%s: latent cache, %" PRId64 " window%s", path, count, count == 1 ? "" : "s");
    for (int64_t i = 0; i < count && i < 3; i++)
        say(to, "  %s", dsvi_latent_cache_file(cache, i));
    if (count > 3)
        say(to, "  and %" PRId64 " more", count - 3);
    for (int64_t i = 0; i < count && status == DSV_OK; i++)
        status = dsvi_latent_cache_check(cache, i);
    if (status == DSV_OK)
        say(to, "health: every window is as the index says");
    dsvi_latent_cache_close(&cache);
    return status;
}

/* A folder of clips or a list of them. */
static DsvStatus inspect_clips(const Inspection *to, const char *path)
{
    DsvDataset *dataset;
    DsvConfig settings;
    double seconds = 0;
    int64_t captions = 0;
    dsv_config_defaults(&settings);
    DSVI_TRY(dsvi_dataset_open(path, &settings, &dataset));
    for (int64_t i = 0; i < dataset->count; i++) {
        seconds += dataset->items[i].info.seconds;
        captions += dataset->items[i].text != NULL;
    }
    say(to, "%s: %" PRId64 " clip%s, %.1f s in all, %" PRId64 " with a caption: data for dsv train, encode",
        path, dataset->count, dataset->count == 1 ? "" : "s", seconds, captions);
    for (int64_t i = 0; i < dataset->left_out_count; i++)
        say(to, "  left out: %s", dataset->left_out[i]);
    for (int64_t i = 0; i < dataset->remark_count; i++)
        say(to, "  %s", dataset->remarks[i]);
    dsvi_dataset_close(&dataset);
    return DSV_OK;
}

static DsvStatus inspect_folder(const Inspection *to, const char *path)
{
    char metrics[DSVI_PATH_MAX];
    const char *part;
    DsvModelPath model;
    if (dsvi_latent_cache_is(path))
        return inspect_cache(to, path);
    DSVI_TRY(dsvi_path_join(metrics, path, "metrics.jsonl"));
    if (dsvi_path_exists(metrics))
        return inspect_run(to, path, metrics);
    if ((part = dsvi_pipeline_part(path))) {
        say(to, "%s: %s of a published pipeline, which this version of dsv cannot use", path, part);
        return DSV_OK;
    }
    if (dsvi_pipeline_is(path))
        say(to, "%s: a published pipeline, of which this version of dsv uses transformer/ alone", path);
    DsvStatus status = dsvi_model_find(path, &model);
    if (status == DSV_E_NOT_FOUND && inspect_clips(to, path) == DSV_OK)
        return DSV_OK;
    if (status == DSV_E_NOT_FOUND)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: neither a run, a checkpoint, a model, a latent cache nor a "
                         "folder of clips", path);
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
