/* Implements ranks_agree.h: compares options, clips and model between ranks. */
#include "train/ranks_agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static DsvStatus compare_ranks(DsviComm *comm, const char *name, const char *value)
{
    char local[DSV_TEXT_MAX] = "", of_first[DSV_TEXT_MAX];
    snprintf(local, sizeof local, "%s", value);
    memcpy(of_first, local, sizeof local);
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, of_first, sizeof of_first));
    if (strcmp(local, of_first) == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s is %s here and %s on rank 0", name, local, of_first);
}

static DsvStatus compare_integer(DsviComm *comm, const char *name, int64_t value)
{
    char text[DSV_CHOICE_MAX];
    snprintf(text, sizeof text, "%" PRId64, value);
    return compare_ranks(comm, name, text);
}

static DsvStatus compare_number(DsviComm *comm, const char *name, double value)
{
    char text[DSV_CHOICE_MAX];
    snprintf(text, sizeof text, "%.17g", value);
    return compare_ranks(comm, name, text);
}

DsvStatus dsvi_ranks_agree_on_data(DsviComm *comm, const char *key, const DsviDataset *dataset)
{
    DsviDatasetFingerprint mark = dsvi_dataset_fingerprint(dataset);
    char name[64], hash[24];
    snprintf(name, sizeof name, "%s: the number of clips", key);
    DSVI_TRY(compare_integer(comm, name, mark.count));
    snprintf(name, sizeof name, "%s: the hash of the clips' names and lengths", key);
    snprintf(hash, sizeof hash, "%016" PRIx64, mark.hash);
    return compare_ranks(comm, name, hash);
}

/* Returns whether each rank may choose the option `key` for its own machine. Options of type DSV_TEXT are
 * paths, but for the few that compare_settings names at its end; compare_settings skips paths. */
static bool may_differ(const char *key)
{
    static const char *const keys[] = {
        "threads",
        "isa",
        "rank_timeout",
        "data.workers",
        "data.prefetch",
        "data.cache_mb",
        "checkpoints_total_limit",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Compares options one after another; after a difference the remaining calls do nothing. */
typedef struct Comparison {
    DsviComm *comm;
    DsvStatus status;
} Comparison;

static void compare_text_of(Comparison *c, const char *key, const char *value)
{
    if (c->status == DSV_OK && !may_differ(key))
        c->status = compare_ranks(c->comm, key, value);
}

static void compare_integer_of(Comparison *c, const char *key, int64_t value)
{
    if (c->status == DSV_OK && !may_differ(key))
        c->status = compare_integer(c->comm, key, value);
}

static void compare_number_of(Comparison *c, const char *key, double value)
{
    if (c->status == DSV_OK && !may_differ(key))
        c->status = compare_number(c->comm, key, value);
}

static DsvStatus compare_settings(DsviComm *comm, const DsvConfig *settings)
{
    Comparison c = {.comm = comm};
#define DSV_INT(key, field, initial, least, most, unit, help) compare_integer_of(&c, key, settings->field);
#define DSV_FLOAT(key, field, initial, least, most, unit, help) compare_number_of(&c, key, settings->field);
#define DSV_BOOL(key, field, initial, help) compare_text_of(&c, key, settings->field ? "true" : "false");
#define DSV_CHOICE(key, field, initial, choices, help) compare_text_of(&c, key, settings->field);
#include "dsv/options.def"
    compare_text_of(&c, "lora_target_modules", settings->lora_target_modules);
    compare_text_of(&c, "train_modules", settings->train_modules);
    compare_text_of(&c, "data.buckets", settings->data_buckets);
    compare_text_of(&c, "data.trigger_word", settings->data_trigger_word);
    compare_text_of(&c, "validation.data", settings->validation_data[0] ? "given" : "not given");
    return c.status;
}

DsvStatus dsvi_ranks_agree(DsviComm *comm, const DsvConfig *settings, const DsviDataset *dataset,
                           const DsviDitConfig *config)
{
    DSVI_TRY(dsvi_ranks_agree_on_data(comm, "data.path", dataset));
    DSVI_TRY(compare_settings(comm, settings));
    DSVI_TRY(compare_integer(comm, "the model's depth", config->num_layers));
    return compare_integer(comm, "the model's width", dsvi_dit_width(config));
}
