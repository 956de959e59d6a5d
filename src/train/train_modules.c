/* Implements train_modules.h. */
#include "train/train_modules.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/zero_internal.h"

/* ---- Patterns ---- */

/* Returns whether the pattern matches a part of the name. */
static bool matches_part(const char *pattern, const char *name)
{
    char part[sizeof((DsviParam *)0)->name];
    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        for (const char *end = at; *end; end += *end == '.') {
            end += strcspn(end, ".");
            snprintf(part, sizeof part, "%.*s", (int)(end - at), at);
            if (fnmatch(pattern, part, 0) == 0)
                return true;
        }
    }
    return false;
}

/* Marks the parameters that one pattern names as trained. */
static DsvStatus train_named(const char *pattern, const DsviParamTable *table, bool *frozen)
{
    bool used = false;
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        if (matches_part(pattern, param->name) || matches_part(pattern, param->original)) {
            frozen[i] = false;
            used = true;
        }
    }
    if (used)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "train_modules: no parameter is called %s, expected names such as attn1, ffn, "
                     "blocks.0 or to_q.weight",
                     pattern);
}

static DsvStatus train_all_named(char *patterns, const DsviParamTable *table, bool *frozen)
{
    char *rest = patterns, *pattern;
    while ((pattern = strsep(&rest, ",")) != NULL) {
        pattern += strspn(pattern, " ");
        pattern[strcspn(pattern, " ")] = 0;
        if (!pattern[0])
            return DSVI_FAIL(DSV_E_USAGE, "train_modules has an empty name, expected names between commas");
        DSVI_TRY(train_named(pattern, table, frozen));
    }
    return DSV_OK;
}

DsvStatus dsvi_train_modules_make(const DsvConfig *settings, const DsviParamTable *table, bool **frozen)
{
    char patterns[sizeof settings->train_modules];
    *frozen = NULL;
    if (!settings->train_modules[0])
        return DSV_OK;
    if (settings->lora_rank > 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "train_modules is %s and lora_rank is %lld, expected one of them: a LoRA trains "
                         "no weight of the model",
                         settings->train_modules, (long long)settings->lora_rank);
    *frozen = malloc((size_t)table->count * sizeof **frozen);
    if (!*frozen)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the list of trained parameters");
    memset(*frozen, true, (size_t)table->count * sizeof **frozen);
    memcpy(patterns, settings->train_modules, sizeof patterns);
    DsvStatus status = train_all_named(patterns, table, *frozen);
    if (status == DSV_OK)
        return DSV_OK;
    free(*frozen);
    *frozen = NULL;
    return status;
}

/* ---- What a training step does to the parameters ---- */

/* Elements [at, at + count) of this rank's shard of a bucket. */
typedef struct Part {
    int64_t bucket, at, count;
} Part;

/* Returns the part of a parameter that is in this rank's shard. */
static Part part_of(const DsviZero *z, const DsviParam *param)
{
    int64_t bucket = dsvi_param_bucket(z->table, param->offset);
    int64_t first = dsvi_shard_first(&z->shard, bucket), end = first + dsvi_shard_count(&z->shard, bucket);
    int64_t from = param->offset - z->table->begin[bucket], to = from + param->count;
    from = from > first ? from : first;
    to = to < end ? to : end;
    return (Part){bucket, from - first, to > from ? to - from : 0};
}

DsvStatus dsvi_train_modules_clear(const DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    for (int64_t i = 0; z->frozen && i < z->table->count; i++) {
        Part part = part_of(z, &z->table->params[i]);
        if (part.bucket == bucket && z->frozen[i] && part.count > 0)
            DSVI_TRY(device->clear(device->stream, dsvi_zero_local_grad(z, bucket) + part.at,
                                   (size_t)part.count * sizeof(float)));
    }
    return DSV_OK;
}

DsvStatus dsvi_train_modules_decay(const DsviZero *z, const DsviOps *ops, DsviStream *stream, int64_t bucket,
                                   float *master, double lr, double *weight_decay)
{
    const double kept = 1 - lr * *weight_decay;
    if (!z->frozen)
        return DSV_OK;
    *weight_decay = 0;
    for (int64_t i = 0; i < z->table->count && kept != 1; i++) {
        Part part = part_of(z, &z->table->params[i]);
        float *weight = master + part.at;
        const DsviAddArgs args = {
            .n = part.count, .a = kept, .x_dtype = DSVI_F32, .y_dtype = DSVI_F32, .x = weight, .y = weight};
        if (part.bucket == bucket && !z->frozen[i] && part.count > 0)
            DSVI_TRY(ops->add.run(stream, &args));
    }
    return DSV_OK;
}
