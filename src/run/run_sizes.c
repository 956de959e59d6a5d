/* Implements run_sizes.h. */
#include "run/run_sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static DsvStatus clip_steps(const DsviCodec *codec, const DsviDitConfig *config, DsviClipSteps *steps)
{
    DSVI_TRY(dsvi_codec_steps(codec, &steps->frame_step, &steps->pixel_step));
    steps->frame_step *= config->patch[0];
    steps->pixel_step *= config->patch[1] > config->patch[2] ? config->patch[1] : config->patch[2];
    return DSV_OK;
}

DsvStatus dsvi_run_sizes_assign(DsviDataset *dataset, const DsvConfig *settings, const DsviCodec *codec,
                                const DsviDitConfig *config)
{
    DsviClipSteps steps;
    DSVI_TRY(clip_steps(codec, config, &steps));
    bool encoded_first = !dataset->latents && strcmp(settings->codec_name, "wan") == 0;
    return dsvi_dataset_assign(dataset, settings, &steps, !encoded_first);
}

void dsvi_run_sizes_report(const DsviDataset *dataset, const DsvConfig *settings, const DsviCodec *codec,
                           const DsviDitConfig *config, void (*line)(void *context, const char *text),
                           void *context)
{
    DsviClipSteps steps;
    char text[256], name[DSVI_CLIP_SIZE_BYTES];
    if (!dataset->order || clip_steps(codec, config, &steps) != DSV_OK)
        return;
    for (int64_t i = 0; i < dataset->sizes.count; i++) {
        const DsviClipSize *size = &dataset->sizes.at[i];
        DsviSizeCount count = dsvi_dataset_size_count(dataset, i);
        int64_t batch = settings->train_batch_size;
        char repeated[64] = "";
        if (count.samples > count.windows)
            snprintf(repeated, sizeof repeated, ", %" PRId64 " samples with repeats", count.samples);
        snprintf(text, sizeof text,
                 "bucket %s: %" PRId64 " clips, %" PRId64 " items%s, %" PRId64 " batches an epoch, %" PRId64
                 " tokens",
                 dsvi_clip_size_text(size, name), count.clips, count.windows, repeated,
                 (count.samples + batch - 1) / batch, dsvi_clip_size_tokens(size, &steps));
        line(context, text);
    }
    snprintf(text, sizeof text, "%" PRId64 " %s left out", dataset->left_out_count,
             dataset->latents ? "cached windows" : "inputs");
    line(context, text);
}

int64_t dsvi_run_sizes_of_batch(void *context, uint64_t batch)
{
    const DsviRunSizes *sizes = context;
    return dsvi_dataset_batch_size(sizes->dataset, sizes->settings, batch);
}

void dsvi_run_sizes_begin(DsviTrainer *t, DsviRunNumbers *out)
{
    uint64_t batch = (uint64_t)t->settings->train_batch_size;
    if (t->dealer)
        t->sample = (t->sample + batch - 1) / batch * batch;
    *out = (DsviRunNumbers){
        .dealer = t->dealer,
        .first = t->sample,
        .batch = (int64_t)batch,
        .passes = t->settings->gradient_accumulation_steps,
        .ranks = t->mesh.data_ranks,
        .rank = t->mesh.data_rank,
    };
}

uint64_t dsvi_run_sizes_number(void *context, uint64_t index)
{
    const DsviRunNumbers *n = context;
    uint64_t batch = (uint64_t)n->batch, passes = (uint64_t)n->passes, pass = index / batch;
    uint64_t first = n->first / batch + pass / passes * passes * (uint64_t)n->ranks;
    return batch * dsvi_dealer_batch(n->dealer, first, n->rank, (int64_t)(pass % passes), NULL) +
           index % batch;
}
