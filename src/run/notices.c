/* Implements notices.h: messages at the start of a run. */
#include "run/notices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 512 };

static void log_preset(const DsvConfig *settings, DsviSparseLog *log, void *context)
{
    const struct {
        const char *key;
        int64_t value;
    } size[] = {
        {"num_layers", settings->model_num_layers},
        {"num_attention_heads", settings->model_num_attention_heads},
        {"attention_head_dim", settings->model_attention_head_dim},
        {"ffn_dim", settings->model_ffn_dim},
        {"text_dim", settings->model_text_dim},
        {"text_len", settings->model_text_len},
    };
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "model.preset=%s, changed by", settings->model_preset);
    int before = used;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (size[i].value != 0)
            used += snprintf(line + used, sizeof line - (size_t)used, " model.%s=%" PRId64, size[i].key,
                             size[i].value);
    if (used > before && !settings->model_path[0])
        log(context, line);
}

static int64_t count_captions(const DsviDataset *dataset)
{
    int64_t captions = 0;
    for (int64_t i = 0; i < dataset->count; i++)
        captions += dataset->items[i].captions.count > 0;
    return captions;
}

static void warn_about_captions(const DsviDataset *dataset, DsviSparseLog *warn, void *context)
{
    char line[LINE_BYTES];
    int64_t captions = count_captions(dataset);
    snprintf(line, sizeof line,
             "%" PRId64 " of %" PRId64 " %s have captions, which are not used: the model is trained without "
             "text, because the data has no text states (dsv encode --model)",
             captions, dataset->count, dataset->latents ? "cached windows" : "clips");
    if (captions > 0 && !dataset->text.folder[0])
        warn(context, line);
}

const char *dsvi_notice_of_guidance(const DsvConfig *settings)
{
    return settings->guidance_scale != 1
               ? "guidance_scale has no effect without text: the sample is the same as with guidance_scale=1"
               : NULL;
}

/* The bounds on captured mass are read without a tail only. A bound that is not the default was chosen. */
static void warn_about_bounds(const DsvConfig *settings, DsviSparseLog *warn, void *context)
{
    char line[LINE_BYTES];
    DsvConfig usual;
    dsv_config_defaults(&usual);
    snprintf(line, sizeof line,
             "sparse.min_mass and sparse.min_head_mass have no effect with sparse.tail=%s: blocks are sparse "
             "by sparse.max_error and sparse.max_head_error",
             settings->sparse_tail);
    if (dsvi_sparse_has_tail(settings) && (settings->sparse_min_mass != usual.sparse_min_mass ||
                                           settings->sparse_min_head_mass != usual.sparse_min_head_mass))
        warn(context, line);
}

void dsvi_notices(const DsvConfig *settings, const DsviDataset *dataset, DsviSparseLog *log,
                  DsviSparseLog *warn, void *context)
{
    bool samples = settings->validation_at_end || settings->validation_steps > 0;
    log_preset(settings, log, context);
    warn_about_bounds(settings, warn, context);
    if (dataset)
        warn_about_captions(dataset, warn, context);
    /* without a data set, only the codec of published models shows that there will be text */
    bool text = dataset ? dataset->text.folder[0] != 0 : strcmp(settings->codec_name, "wan") == 0;
    if (samples && !text && dsvi_notice_of_guidance(settings))
        warn(context, dsvi_notice_of_guidance(settings));
}
