/* Implements dataset_sources.h. */
#include "data/dataset_sources.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/dataset_find.h"
#include "data/list_weights.h"

/* Divides the weights of the items such that those of a source have the sum of the source's weight. */
static DsvStatus divide_by_source(const DsviDataset *d, double *weights)
{
    double sum[DSVI_DATA_SOURCES_MAX] = {0};
    for (int64_t i = 0; i < d->count; i++)
        sum[d->items[i].from] += weights[i] * (double)d->items[i].windows;
    for (int64_t from = 0; from < d->source_count; from++)
        if (sum[from] == 0)
            return DSVI_FAIL(
                DSV_E_NOT_FOUND,
                "%s: none of its clips can be used, and its weight is %g (the log names the reasons)",
                d->sources[from].named.path, d->sources[from].named.weight);
    for (int64_t i = 0; i < d->count; i++)
        weights[i] *= d->sources[d->items[i].from].named.weight / sum[d->items[i].from];
    return DSV_OK;
}

DsvStatus dsvi_dataset_weigh(DsviDataset *d)
{
    DsvStatus status = DSV_OK;
    bool by_source = d->source_count > 1 && d->sources[0].named.weight > 0;
    if (!by_source && !d->weighed)
        return DSV_OK;
    double *weights = calloc((size_t)d->count, sizeof *weights);
    int64_t *repeats = calloc((size_t)d->count, sizeof *repeats);
    if (!weights || !repeats) {
        status = dsvi_dataset_no_memory();
        goto done;
    }
    for (int64_t i = 0; i < d->count; i++)
        weights[i] = (double)d->items[i].repeats * d->items[i].weight;
    if (by_source)
        DSVI_TRY_GOTO(status, divide_by_source(d, weights), done);
    status = dsvi_list_weights_apply(weights, d->count, repeats);
    if (status != DSV_OK) {
        dsvi_fail_prefix(status, "%s", d->source_count > 1 ? "data.path" : d->sources[0].named.path);
        goto done;
    }
    for (int64_t i = 0; i < d->count; i++)
        d->items[i].repeats = repeats[i];
done:
    free(weights);
    free(repeats);
    return status;
}

/* ---- Clips in several sources ---- */

typedef struct ClipFile {
    dev_t device;
    ino_t number;
    const DsviDatasetItem *item;
} ClipFile;

/* Orders by file; items of one file keep their order. */
static int by_file(const void *a, const void *b)
{
    const ClipFile *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

static DsvStatus remark_shared(DsviDataset *d, const ClipFile *files, int64_t count)
{
    char line[4 * DSVI_PATH_MAX];
    const DsviDatasetItem *first = NULL, *again = NULL;
    int64_t shared = 0;
    for (int64_t i = 0, end; i < count; i = end) {
        const DsviDatasetItem *other = NULL;
        for (end = i + 1;
             end < count && files[end].device == files[i].device && files[end].number == files[i].number;
             end++)
            other = files[end].item->from != files[i].item->from && !other ? files[end].item : other;
        shared += other != NULL;
        if (other && (!first || files[i].item < first)) {
            first = files[i].item;
            again = other;
        }
    }
    if (shared == 0)
        return DSV_OK;
    snprintf(line, sizeof line,
             "clips that are in more than one source of data.path: %" PRId64 ", the first: %s, in %s and %s",
             shared, first->path, d->sources[first->from].named.path, d->sources[again->from].named.path);
    return dsvi_dataset_add_remark(d, strdup(line));
}

DsvStatus dsvi_dataset_remark_shared(DsviDataset *d)
{
    int64_t count = 0;
    if (d->source_count < 2 || d->latents)
        return DSV_OK;
    ClipFile *files = calloc((size_t)d->count + 1, sizeof *files);
    if (!files)
        return dsvi_dataset_no_memory();
    for (int64_t i = 0; i < d->count; i++) {
        struct stat of;
        if (stat(d->items[i].path, &of) == 0)
            files[count++] = (ClipFile){of.st_dev, of.st_ino, &d->items[i]};
    }
    qsort(files, (size_t)count, sizeof *files, by_file);
    DsvStatus status = remark_shared(d, files, count);
    free(files);
    return status;
}

/* ---- Report ---- */

/* Returns the end of the range of items from `begin` that come from one clip. */
static int64_t clip_end(const DsviDataset *d, int64_t begin)
{
    const DsviDatasetItem *first = &d->items[begin];
    const char *clip = first->source ? first->source : first->path;
    int64_t end = begin + 1;
    for (; end < d->count && d->items[end].from == first->from; end++) {
        const DsviDatasetItem *item = &d->items[end];
        if (strcmp(item->source ? item->source : item->path, clip) != 0)
            break;
    }
    return end;
}

/* Returns the number of samples of an epoch that come from source `from`. */
static int64_t samples_of(const DsviDataset *d, int64_t from)
{
    int64_t samples = 0;
    for (int64_t i = 0; i < d->count; i++)
        samples += d->items[i].from == from ? d->items[i].repeats * d->items[i].windows : 0;
    return samples;
}

/* Writes a line about source `from`; `all` is the number of samples of an epoch. */
static void source_text(const DsviDataset *d, int64_t from, int64_t all, char *text, size_t room)
{
    const DsviDataSource *named = &d->sources[from].named;
    int64_t clips = 0;
    char weight[64] = "";
    for (int64_t i = 0; i < d->count; i = clip_end(d, i))
        clips += d->items[i].from == from;
    if (named->weight > 0)
        snprintf(weight, sizeof weight, ", weight %g", named->weight);
    else if (named->repeats > 1)
        snprintf(weight, sizeof weight, ", repeats %" PRId64, named->repeats);
    snprintf(text, room, "source %.512s: %" PRId64 " clips%s, %" PRId64 " samples an epoch, %.1f %% of all",
             named->path, clips, weight, samples_of(d, from),
             100 * (double)samples_of(d, from) / (double)all);
}

void dsvi_dataset_sources_report(const DsviDataset *d, void (*line)(void *context, const char *text),
                                 void *context)
{
    char text[1024];
    int64_t all = 0;
    for (int64_t from = 0; from < d->source_count; from++)
        all += samples_of(d, from);
    for (int64_t from = 0; from < d->source_count && d->source_count > 1; from++) {
        source_text(d, from, all, text, sizeof text);
        line(context, text);
    }
}
