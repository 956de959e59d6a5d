/* A pass of a text encoder on padded ids from a file. The encoder computes without padding: the rows that the
 * mask marks are packed, and their results are put back among rows of zeros. */
#include <stdlib.h>
#include <string.h>

#include "api/forward_parts.h"
#include "backend/backend.h"
#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "model/umt5/umt5.h"

static const char IDS[] = "input_ids", MASK[] = "attention_mask";

typedef struct TextPass {
    int64_t batch, width;
    int64_t rows, longest;    /* rows that the masks mark, in all and in one prompt */
    int64_t *begin, *lengths; /* (batch) the marked rows of each prompt */
    int32_t *ids;             /* (rows) */
    float *hidden;            /* (rows, d_model) */
    float *padded;            /* (batch, width, d_model) */
} TextPass;

static DsvStatus require_whole(const DsviSafetensors *in, const char *name, const int64_t shape[2],
                               const DsviStoredTensor **out)
{
    DSVI_TRY(dsvi_safetensors_require(in, name, 2, shape, out));
    if ((*out)->dtype != DSVI_I32 && (*out)->dtype != DSVI_I64)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected I32 or I64", dsvi_safetensors_path(in),
                         name, dsvi_dtype_name((*out)->dtype));
    return DSV_OK;
}

static int64_t whole_at(const DsviStoredTensor *tensor, int64_t i)
{
    return tensor->dtype == DSVI_I32 ? ((const int32_t *)tensor->data)[i]
                                     : ((const int64_t *)tensor->data)[i];
}

/* Finds the rows of prompt `b` that the mask marks. They must follow one another: the position bias depends
 * on the distance of rows. */
static DsvStatus find_marked(TextPass *p, const DsviSafetensors *in, const DsviStoredTensor *mask, int64_t b)
{
    int64_t end = 0, marked = 0;
    p->begin[b] = 0;
    for (int64_t i = 0; i < p->width; i++) {
        int64_t value = whole_at(mask, b * p->width + i);
        if (value != 0 && value != 1)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: %s[%lld, %lld] is %lld, expected 0 or 1",
                             dsvi_safetensors_path(in), MASK, (long long)b, (long long)i, (long long)value);
        if (value && marked++ == 0)
            p->begin[b] = i;
        end = value ? i + 1 : end;
    }
    p->lengths[b] = marked;
    p->rows += marked;
    p->longest = marked > p->longest ? marked : p->longest;
    if (marked > 0 && end - p->begin[b] != marked)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: %s of prompt %lld has zeros between ones, expected ones in a row",
                         dsvi_safetensors_path(in), MASK, (long long)b);
    return DSV_OK;
}

static DsvStatus no_memory_for(const char *what, int64_t count)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld %s", (long long)count, what);
}

static DsvStatus text_pass_read(TextPass *p, const DsviSafetensors *in)
{
    const DsviStoredTensor *ids, *mask;
    DSVI_TRY(require_whole(in, IDS, (int64_t[]){-1, -1}, &ids));
    DSVI_TRY(require_whole(in, MASK, ids->shape, &mask));
    p->batch = ids->shape[0];
    p->width = ids->shape[1];
    p->begin = calloc((size_t)p->batch + 1, sizeof *p->begin);
    p->lengths = calloc((size_t)p->batch + 1, sizeof *p->lengths);
    p->ids = calloc((size_t)ids->count + 1, sizeof *p->ids);
    if (!p->begin || !p->lengths || !p->ids)
        return no_memory_for("ids", ids->count);
    int32_t *next = p->ids;
    for (int64_t b = 0; b < p->batch; b++) {
        DSVI_TRY(find_marked(p, in, mask, b));
        for (int64_t i = 0; i < p->lengths[b]; i++) {
            int64_t id = whole_at(ids, b * p->width + p->begin[b] + i);
            *next++ = id < 0 || id > INT32_MAX ? -1 : (int32_t)id; /* the encoder refuses -1 */
        }
    }
    return DSV_OK;
}

static DsvStatus text_pass_encode(TextPass *p, DsviUmt5 *encoder)
{
    const int64_t model = dsvi_umt5_config(encoder)->d_model;
    const float *from;
    p->hidden = malloc((size_t)(p->rows * model + 1) * sizeof *p->hidden);
    p->padded = calloc((size_t)(p->batch * p->width * model + 1), sizeof *p->padded);
    if (!p->hidden || !p->padded)
        return no_memory_for("rows of hidden states", p->batch * p->width);
    DSVI_TRY(dsvi_umt5_encode(encoder, p->batch, p->lengths, p->ids, p->hidden));
    from = p->hidden;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t count = p->lengths[b] * model;
        if (count > 0)
            memcpy(p->padded + (b * p->width + p->begin[b]) * model, from, (size_t)count * sizeof *from);
        from += count;
    }
    return DSV_OK;
}

static DsvStatus text_pass_write(const TextPass *p, int64_t model, const char *path)
{
    const int64_t count = p->batch * p->width * model;
    const DsviStoredTensor result = {
        .name = "last_hidden_state",
        .dtype = DSVI_F32,
        .ndim = 3,
        .shape = {p->batch, p->width, model},
        .count = count,
        .bytes = (size_t)count * sizeof(float),
        .data = p->padded,
    };
    return dsvi_safetensors_replace(path, &result, 1, NULL, 0);
}

static void text_pass_free(TextPass *p)
{
    free(p->begin);
    free(p->lengths);
    free(p->ids);
    free(p->hidden);
    free(p->padded);
}

DsvStatus dsvi_forward_text(const DsviForwardFiles *files, bool grad, const DsvConfig *settings)
{
    DsvStatus status;
    TextPass pass = {0};
    DsviBackend backend = {0};
    DsviUmt5 *encoder = NULL;
    DsviSafetensors *in = NULL;
    if (grad)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: a text encoder, which has no backward pass", files->model);
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(files->in, &in), done);
    DSVI_TRY_GOTO(status, text_pass_read(&pass, in), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &backend), done);
    const DsviUmt5Options options = {.act = dsvi_dit_act(settings),
                                     .rows = dsvi_umt5_rows(pass.rows, pass.longest),
                                     .memory_bytes = dsvi_memory_limit(settings)};
    DSVI_TRY_GOTO(status, dsvi_umt5_open(&backend, files->model, &options, &encoder), done);
    DSVI_TRY_GOTO(status, text_pass_encode(&pass, encoder), done);
    DSVI_TRY_GOTO(status, text_pass_write(&pass, dsvi_umt5_config(encoder)->d_model, files->out), done);
done:
    dsvi_umt5_close(&encoder);
    dsvi_backend_close(&backend);
    dsvi_safetensors_close(&in);
    text_pass_free(&pass);
    return status;
}
