/* See ranks_agree.h. */
#include "train/ranks_agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static DsvStatus compare_ranks(DsvComm *comm, const char *name, const char *value)
{
    char own[DSV_CHOICE_MAX] = "", of_first[DSV_CHOICE_MAX];
    snprintf(own, sizeof own, "%s", value);
    memcpy(of_first, own, sizeof own);
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, of_first, sizeof of_first));
    if (strcmp(own, of_first) == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s is %s here and %s on rank 0", name, own, of_first);
}

static DsvStatus compare_integer(DsvComm *comm, const char *name, int64_t value)
{
    char text[DSV_CHOICE_MAX];
    snprintf(text, sizeof text, "%" PRId64, value);
    return compare_ranks(comm, name, text);
}

static DsvStatus compare_number(DsvComm *comm, const char *name, double value)
{
    char text[DSV_CHOICE_MAX];
    snprintf(text, sizeof text, "%.17g", value);
    return compare_ranks(comm, name, text);
}

DsvStatus dsvi_ranks_agree_on_data(DsvComm *comm, const char *key, const DsvDataset *dataset)
{
    DsvDatasetMark mark = dsvi_dataset_mark(dataset);
    char name[64], hash[24];
    snprintf(name, sizeof name, "%s: the number of clips", key);
    DSVI_TRY(compare_integer(comm, name, mark.count));
    snprintf(name, sizeof name, "%s: the hash of the clips' names and lengths", key);
    snprintf(hash, sizeof hash, "%016" PRIx64, mark.hash);
    return compare_ranks(comm, name, hash);
}

/* What a rank may decide for its own machine. Texts are paths, which are its own too. */
static bool is_own(const char *key)
{
    static const char *const own[] = {
        "threads", "isa", "rank_timeout", "data.workers", "data.prefetch", "data.cache_mb",
        "checkpoints_total_limit",
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(key, own[i]) == 0)
            return true;
    return false;
}

static DsvStatus compare_settings(DsvComm *comm, const DsvConfig *settings)
{
#define COMPARE(how, key, value)      \
    if (!is_own(key))                 \
        DSVI_TRY(how(comm, key, value));
#define DSV_INT(key, field, initial, least, most, unit, help) COMPARE(compare_integer, key, settings->field)
#define DSV_FLOAT(key, field, initial, least, most, unit, help) COMPARE(compare_number, key, settings->field)
#define DSV_BOOL(key, field, initial, help) COMPARE(compare_ranks, key, settings->field ? "true" : "false")
#define DSV_CHOICE(key, field, initial, choices, help) COMPARE(compare_ranks, key, settings->field)
#include "dsv/options.def"
#undef COMPARE
    return compare_ranks(comm, "validation.data", settings->validation_data[0] ? "given" : "not given");
}

DsvStatus dsvi_ranks_agree(DsvComm *comm, const DsvConfig *settings, const DsvDataset *dataset,
                           const DsvDitConfig *config)
{
    DSVI_TRY(dsvi_ranks_agree_on_data(comm, "data.path", dataset));
    DSVI_TRY(compare_settings(comm, settings));
    DSVI_TRY(compare_integer(comm, "the model's depth", config->num_layers));
    return compare_integer(comm, "the model's width", dsvi_dit_width(config));
}
