/* dsv_text (include/dsv/text.h): ids and hidden states of the prompts in a file. */
#include "dsv/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/fs.h"
#include "base/host.h"
#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "model/umt5/umt5.h"
#include "run/prompt_file.h"
#include "run/text_path.h"
#include "text/tokenizer.h"

enum { NAME_BYTES = 40, TENSORS_PER_PROMPT = 2 };

typedef struct TextJob {
    const char *prompts_path;
    const DsvEvents *events;
    DsviTextPath path;
    DsviPromptFile prompts;
    int64_t rows, longest; /* ids of all prompts, and of the longest */
    int64_t *lengths;      /* (prompts.count) */
    int32_t *ids;          /* (rows) the ids of all prompts one after another */
    float *hidden;         /* (rows, d_model) */
} TextJob;

static void text_warn_cut(const TextJob *job, int64_t prompt, int64_t cut)
{
    char line[DSVI_PATH_MAX + 128];
    if (cut == 0 || !job->events->log)
        return;
    snprintf(line, sizeof line,
             "%s: line %lld has %lld ids, of which the last %lld before the end are cut off",
             job->prompts_path, (long long)prompt + 1, (long long)(DSVI_TEXT_ROWS + cut), (long long)cut);
    job->events->log(job->events->context, DSV_LOG_WARNING, line);
}

static DsvStatus text_tokenize(TextJob *job, const DsviTokenizer *tokenizer)
{
    int64_t room = 0;
    for (int64_t i = 0; i < job->prompts.count; i++) {
        int64_t cut;
        if (room - job->rows < DSVI_TEXT_ROWS) {
            room = 2 * room + 64 * DSVI_TEXT_ROWS;
            int32_t *more = realloc(job->ids, (size_t)room * sizeof *more);
            if (!more)
                return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld ids", (long long)room);
            job->ids = more;
        }
        DsvStatus status = dsvi_tokenizer_encode(tokenizer, job->prompts.lines[i], DSVI_TEXT_ROWS,
                                                 job->ids + job->rows, &job->lengths[i], &cut);
        if (status != DSV_OK)
            return dsvi_fail_prefix(status, "%s: line %lld", job->prompts_path, (long long)i + 1);
        text_warn_cut(job, i, cut);
        job->rows += job->lengths[i];
        job->longest = job->lengths[i] > job->longest ? job->lengths[i] : job->longest;
    }
    return DSV_OK;
}

static DsvStatus text_read(TextJob *job, const char *model_path)
{
    DsvStatus status;
    DsviTokenizer *tokenizer = NULL;
    DSVI_TRY(dsvi_prompt_file_read(job->prompts_path, &job->prompts));
    job->lengths = calloc((size_t)job->prompts.count, sizeof *job->lengths);
    if (!job->lengths)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld prompts",
                         (long long)job->prompts.count);
    DSVI_TRY(dsvi_text_path_find(model_path, &job->path));
    DSVI_TRY_GOTO(status, dsvi_tokenizer_open(job->path.tokenizer, &tokenizer), done);
    DSVI_TRY_GOTO(status, text_tokenize(job, tokenizer), done);
done:
    dsvi_tokenizer_close(&tokenizer);
    return status;
}

/* Encodes the prompts in groups of at most `limit` rows, and reports after each group. */
static DsvStatus text_encode(TextJob *job, DsviUmt5 *encoder, int64_t limit)
{
    const int64_t count = job->prompts.count, model = dsvi_umt5_config(encoder)->d_model;
    const double start = dsvi_clock_seconds();
    job->hidden = malloc((size_t)(job->rows * model + 1) * sizeof *job->hidden);
    if (!job->hidden)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "no memory for %lld rows of hidden states: divide the prompts among files",
                         (long long)job->rows);
    for (int64_t done = 0, row = 0; done < count;) {
        int64_t group = 0, rows = 0;
        while (done + group < count && rows + job->lengths[done + group] <= limit)
            rows += job->lengths[done + group++];
        DsvStatus status = dsvi_umt5_encode(encoder, group, job->lengths + done, job->ids + row,
                                            job->hidden + row * model);
        if (status != DSV_OK)
            return dsvi_fail_prefix(status, "%s", job->path.encoder);
        done += group;
        row += rows;
        DsvProgress progress = {.unit = "prompt", .done = done, .total = count};
        progress.seconds_left = (dsvi_clock_seconds() - start) / (double)row * (double)(job->rows - row);
        if (job->events->progress)
            job->events->progress(job->events->context, &progress);
        if (done < count && job->events->stop && job->events->stop(job->events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld prompts; nothing is written",
                             (long long)done, (long long)count);
    }
    return DSV_OK;
}

static DsvStatus text_write(const TextJob *job, int64_t model, const char *path)
{
    const size_t count = (size_t)job->prompts.count * TENSORS_PER_PROMPT;
    DsviStoredTensor *tensors = calloc(count, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(count, sizeof *names);
    DsvStatus status = tensors && names
                           ? DSV_OK
                           : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu tensors", count);
    for (int64_t i = 0, row = 0; i < job->prompts.count && status == DSV_OK; row += job->lengths[i++]) {
        const int64_t n = job->lengths[i], at = TENSORS_PER_PROMPT * i;
        snprintf(names[at], NAME_BYTES, "input_ids.%lld", (long long)i);
        snprintf(names[at + 1], NAME_BYTES, "hidden.%lld", (long long)i);
        tensors[at] = (DsviStoredTensor){.dtype = DSVI_I32, .ndim = 1, .shape = {n}, .count = n};
        tensors[at + 1] = (DsviStoredTensor){
            .dtype = DSVI_F32, .ndim = 2, .shape = {n, model}, .count = n * model};
        tensors[at].data = job->ids + row;
        tensors[at + 1].data = job->hidden + row * model;
        for (int64_t t = at; t < at + TENSORS_PER_PROMPT; t++) {
            tensors[t].name = names[t];
            tensors[t].bytes = (size_t)tensors[t].count * dsvi_dtype_size(tensors[t].dtype);
        }
    }
    if (status == DSV_OK)
        status = dsvi_safetensors_replace(path, tensors, count, NULL, 0);
    free(tensors);
    free(names);
    return status;
}

static void text_job_free(TextJob *job)
{
    dsvi_prompt_file_free(&job->prompts);
    free(job->lengths);
    free(job->ids);
    free(job->hidden);
}

DsvStatus dsv_text(const char *model_path, const char *prompts_path, const char *out_path,
                   const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    const DsvEvents none = {0};
    TextJob job = {.prompts_path = prompts_path, .events = events ? events : &none};
    DsviBackend backend = {0};
    DsviUmt5 *encoder = NULL;
    DSVI_TRY(dsvi_config_check_abi(settings));
    DSVI_TRY(dsvi_file_check_writable(out_path));
    DSVI_TRY_GOTO(status, text_read(&job, model_path), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &backend), done);
    const DsviUmt5Options options = {.act = dsvi_dit_act(settings),
                                     .rows = dsvi_umt5_rows(job.rows, job.longest),
                                     .memory_bytes = dsvi_memory_limit(settings)};
    DSVI_TRY_GOTO(status, dsvi_umt5_open(&backend, job.path.encoder, &options, &encoder), done);
    DSVI_TRY_GOTO(status, text_encode(&job, encoder, options.rows), done);
    DSVI_TRY_GOTO(status, text_write(&job, dsvi_umt5_config(encoder)->d_model, out_path), done);
done:
    dsvi_umt5_close(&encoder);
    dsvi_backend_close(&backend);
    text_job_free(&job);
    return status;
}
