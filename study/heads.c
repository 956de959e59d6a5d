/* Saves queries, keys and values of a trained model on a noisy clip, for `dsv bench attention --heads-from`.
 *
 *     dsv_heads MODEL CLIPS OUT --blocks 0,4,8 [--clip N] [--noise SIGMA] [key=value]...
 *
 * One clip (number N of CLIPS, default 0) with noise of level SIGMA (default 0.5) passes forward with dense
 * attention. For each block of --blocks the file OUT/block-B.safetensors gets q, k and v of all heads,
 * (heads, tokens, head size), q and k after norm and RoPE, with tokens in raster order and the metadata
 * "grid". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/number_text.h"
#include "base/safetensors.h"
#include "dsv/sample.h"
#include "study_pass.h"

enum { TENSORS = 3, BLOCKS_MAX = 128 };

typedef struct Heads {
    const char *model, *clips, *out;
    int64_t blocks[BLOCKS_MAX], block_count;
    int64_t clip;
    double sigma;
    DsvConfig settings;
    StudyPass *pass;
    unsigned char *rows;            /* (S, N, D) act, host: one tensor as the model has it */
    unsigned char *stored[TENSORS]; /* (N, S, D) act, host */
} Heads;

static bool is_wanted(const Heads *h, int64_t block)
{
    for (int64_t i = 0; i < h->block_count; i++)
        if (h->blocks[i] == block)
            return true;
    return false;
}

/* Downloads a tensor (S, N, D) and moves its heads to the front, (N, S, D). */
static DsvStatus fetch(Heads *h, const void *from, unsigned char *to)
{
    const DsviSparseShape *shape = study_pass_shape(h->pass);
    DsviDevice *device = study_pass_backend(h->pass)->device;
    size_t tokens = (size_t)shape->tokens, heads = (size_t)shape->heads;
    size_t row = (size_t)shape->head_dim * dsvi_dtype_size(shape->act);
    DSVI_TRY(device->download(device->stream, h->rows, from, tokens * heads * row));
    DSVI_TRY(device->sync(device->stream));
    for (size_t head = 0; head < heads; head++)
        for (size_t token = 0; token < tokens; token++)
            memcpy(to + (head * tokens + token) * row, h->rows + (token * heads + head) * row, row);
    return DSV_OK;
}

static DsvStatus write_block(const Heads *h, int64_t block)
{
    static const char *const names[TENSORS] = {"q", "k", "v"};
    const DsviSparseShape *s = study_pass_shape(h->pass);
    DsviStoredTensor tensors[TENSORS];
    char path[DSVI_PATH_MAX], name[64], grid[96], context[DSVI_PATH_MAX];
    int64_t count = s->heads * s->tokens * s->head_dim;
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (DsviStoredTensor){.name = names[i],
                                        .dtype = s->act,
                                        .ndim = 3,
                                        .shape = {s->heads, s->tokens, s->head_dim},
                                        .count = count,
                                        .bytes = (size_t)count * dsvi_dtype_size(s->act),
                                        .data = h->stored[i]};
    snprintf(name, sizeof name, "block-%lld.safetensors", (long long)block);
    snprintf(grid, sizeof grid, "%lldx%lldx%lld", (long long)s->grid[0], (long long)s->grid[1],
             (long long)s->grid[2]);
    snprintf(context, sizeof context, "%s, noise level %g, block %lld",
             study_pass_clip_name(h->pass, h->clip), h->sigma, (long long)block);
    const char *const metadata[][2] = {{"grid", grid}, {"context", context}};
    DSVI_TRY(dsvi_path_join(path, h->out, name));
    DSVI_TRY(dsvi_safetensors_write(path, tensors, TENSORS, metadata, 2));
    fprintf(stderr, "%s: %lld heads of %lld tokens\n", path, (long long)s->heads, (long long)s->tokens);
    return DSV_OK;
}

static DsvStatus see_block(void *context, int64_t block, const DsviAttentionCall *args)
{
    Heads *h = context;
    if (!is_wanted(h, block))
        return DSV_OK;
    const void *const from[TENSORS] = {args->q, args->k, args->v};
    for (int i = 0; i < TENSORS; i++)
        DSVI_TRY(fetch(h, from[i], h->stored[i]));
    return write_block(h, block);
}

static DsvStatus check_sizes(const Heads *h)
{
    const DsviSparseShape *shape = study_pass_shape(h->pass);
    for (int64_t i = 0; i < h->block_count; i++)
        if (h->blocks[i] >= shape->blocks)
            return DSVI_FAIL(DSV_E_USAGE, "--blocks names block %lld, and %s has blocks 0 to %lld",
                             (long long)h->blocks[i], h->model, (long long)shape->blocks - 1);
    return h->clip < study_pass_clips(h->pass)
               ? DSV_OK
               : DSVI_FAIL(DSV_E_USAGE, "--clip %lld, and %s has clips 0 to %lld", (long long)h->clip,
                           h->clips, (long long)study_pass_clips(h->pass) - 1);
}

static DsvStatus run(Heads *h)
{
    double loss;
    DSVI_TRY(study_pass_open(h->model, h->clips, &h->settings, &h->pass));
    DSVI_TRY(check_sizes(h));
    DSVI_TRY(dsvi_folder_make(h->out));
    const DsviSparseShape *shape = study_pass_shape(h->pass);
    size_t bytes = (size_t)(shape->tokens * shape->heads * shape->head_dim) * dsvi_dtype_size(shape->act);
    bool all = (h->rows = malloc(bytes));
    for (int i = 0; i < TENSORS; i++)
        all = (h->stored[i] = malloc(bytes)) && all;
    if (!all)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %d tensors of %zu bytes", TENSORS + 1, bytes);
    DSVI_TRY(study_pass_draw(h->pass, h->clip));
    DSVI_TRY(study_pass_run(h->pass, h->sigma, see_block, h, &loss));
    fprintf(stderr, "%s, noise level %g: loss %.4f\n", study_pass_clip_name(h->pass, h->clip), h->sigma,
            loss);
    return DSV_OK;
}

/* ---- the command line ---- */

static DsvStatus read_whole(const char *flag, const char *text, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return *end || end == text || *out < 0
               ? DSVI_FAIL(DSV_E_USAGE, "%s %s, expected a number of 0 or more", flag, text)
               : DSV_OK;
}

static DsvStatus read_blocks(Heads *h, const char *text)
{
    char word[32];
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (h->block_count == BLOCKS_MAX)
            return DSVI_FAIL(DSV_E_USAGE, "--blocks names more than %d blocks", BLOCKS_MAX);
        DSVI_TRY(read_whole("--blocks", word, &h->blocks[h->block_count++]));
        at += length + (at[length] == ',');
    }
    return DSV_OK;
}

static DsvStatus read_arguments(Heads *h, int count, char **argument)
{
    bool of_run;
    if (count < 4)
        return DSVI_FAIL(DSV_E_USAGE, "usage: dsv_heads MODEL CLIPS OUT --blocks B,... [--clip N] "
                                      "[--noise SIGMA] [key=value]...");
    h->model = argument[1];
    h->clips = argument[2];
    h->out = argument[3];
    h->sigma = 0.5;
    dsv_config_defaults(&h->settings);
    DSVI_TRY(dsv_config_of_run(h->model, &h->settings, &of_run));
    for (int i = 4; i < count; i++) {
        const char *word = argument[i], *value = i + 1 < count ? argument[i + 1] : "";
        if (strchr(word, '=')) {
            DSVI_TRY(dsv_config_set(&h->settings, word));
            continue;
        }
        i++;
        if (strcmp(word, "--blocks") == 0)
            DSVI_TRY(read_blocks(h, value));
        else if (strcmp(word, "--clip") == 0)
            DSVI_TRY(read_whole(word, value, &h->clip));
        else if (strcmp(word, "--noise") != 0)
            return DSVI_FAIL(DSV_E_USAGE, "%s is unknown", word);
        else if (!dsvi_number_read(value, &h->sigma) || !(h->sigma >= 0 && h->sigma <= 1))
            return DSVI_FAIL(DSV_E_USAGE, "--noise %s, expected a number from 0 to 1", value);
    }
    return h->block_count > 0 ? DSV_OK : DSVI_FAIL(DSV_E_USAGE, "--blocks B,... is required");
}

int main(int count, char **argument)
{
    Heads *h = calloc(1, sizeof *h);
    if (!h)
        return EXIT_FAILURE;
    DsvStatus status = read_arguments(h, count, argument);
    if (status == DSV_OK)
        status = run(h);
    if (status != DSV_OK)
        fprintf(stderr, "dsv_heads: %s\n", dsv_error_message());
    study_pass_close(&h->pass);
    free(h->rows);
    for (int i = 0; i < TENSORS; i++)
        free(h->stored[i]);
    free(h);
    return status == DSV_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
