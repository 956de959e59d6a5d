/* dsv_lora_convert, dsv_lora_merge and dsv_lora_merge_experts (include/dsv/lora.h). */
#include "dsv/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lora_files.h"
#include "base/fs.h"

DsvStatus dsv_lora_convert(const char *in_path, const char *out_path, const char *form_name)
{
    DsviLora lora;
    DsviLoraForm form;
    DSVI_TRY(dsvi_lora_form_find(form_name, &form));
    DSVI_TRY(dsvi_lora_file_check(in_path));
    DSVI_TRY(dsvi_file_check_writable(out_path));
    DSVI_TRY(dsvi_lora_open(in_path, &lora));
    DsvStatus status = dsvi_lora_write(&lora, form, out_path);
    dsvi_lora_close(&lora);
    return status;
}

static bool is_safetensors(const char *name)
{
    static const char ENDING[] = ".safetensors";
    size_t length = strlen(name);
    return length >= sizeof ENDING && strcmp(name + length - (sizeof ENDING - 1), ENDING) == 0;
}

/* A folder that is being copied. */
typedef struct LoraCopy {
    const char *from, *to;
    const char *out; /* what the whole copy is written to, which may be inside the model */
    bool pipeline;   /* the folders of transformers in it are written by the merge */
    bool merged;     /* the safetensors files of the folder itself are written by the merge */
} LoraCopy;

static bool is_transformer(const char *name)
{
    return strcmp(name, "transformer") == 0 || strcmp(name, "transformer_2") == 0;
}

static DsvStatus copy_entry(void *context, const char *name)
{
    const LoraCopy *copy = context;
    char from[DSVI_PATH_MAX], to[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(from, copy->from, name));
    DSVI_TRY(dsvi_path_join(to, copy->to, name));
    if (dsvi_path_same(from, copy->out))
        return DSV_OK;
    if (dsvi_path_is_folder(from)) {
        LoraCopy inner = {
            .from = from, .to = to, .out = copy->out, .merged = copy->pipeline && is_transformer(name)};
        DSVI_TRY(dsvi_folder_make(to));
        return dsvi_folder_list(from, copy_entry, &inner);
    }
    if (copy->merged && is_safetensors(name))
        return DSV_OK;
    return dsvi_file_copy(from, to);
}

static DsvStatus refuse_entry(void *context, const char *name)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s holds %s, expected a new or empty folder", (const char *)context, name);
}

/* A model and the LoRAs that are added to its transformers. */
typedef struct LoraModel {
    const char *path, *out;
    bool pipeline;      /* `path` holds transformer/ */
    bool two;           /* and transformer_2/ */
    DsviLoraSet set[2]; /* of transformer and transformer_2, or of `path` itself */
    char from[2][DSVI_PATH_MAX], to[2][DSVI_PATH_MAX];
} LoraModel;

static DsvStatus lora_model_find(LoraModel *m)
{
    static const char *const NAMES[2] = {"transformer", "transformer_2"};
    for (int i = 0; i < 2; i++) {
        DSVI_TRY(dsvi_path_join(m->from[i], m->path, NAMES[i]));
        DSVI_TRY(dsvi_path_join(m->to[i], m->out, NAMES[i]));
    }
    m->pipeline = dsvi_path_is_folder(m->from[0]);
    m->two = m->pipeline && dsvi_path_is_folder(m->from[1]);
    if (m->pipeline)
        return DSV_OK;
    snprintf(m->from[0], sizeof m->from[0], "%s", m->path);
    snprintf(m->to[0], sizeof m->to[0], "%s", m->out);
    return DSV_OK;
}

/* Writes the whole model, after everything that can be checked has been checked. */
static DsvStatus lora_model_write(const LoraModel *m)
{
    LoraCopy copy = {
        .from = m->path, .to = m->out, .out = m->out, .pipeline = m->pipeline, .merged = !m->pipeline};
    DSVI_TRY(dsvi_folder_make(m->out));
    DSVI_TRY(dsvi_folder_list(m->out, refuse_entry, (void *)m->out));
    for (int i = 0; i <= m->two; i++) {
        DSVI_TRY(dsvi_folder_make(m->to[i]));
        DSVI_TRY(dsvi_lora_set_merge(&m->set[i], m->from[i], m->to[i]));
    }
    return dsvi_path_is_folder(m->path) ? dsvi_folder_list(m->path, copy_entry, &copy) : DSV_OK;
}

DsvStatus dsv_lora_merge_experts(const char *model_path, const char *const *lora_paths, const double *scales,
                                 const DsvExpert *experts, size_t count, const char *out_folder)
{
    DsvStatus status = DSV_OK;
    const DsviLoraFiles files = {lora_paths, scales, experts, count};
    if (!dsvi_path_exists(model_path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such model folder or file", model_path);
    LoraModel *model = calloc(1, sizeof *model);
    if (!model)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to merge LoRAs");
    model->path = model_path;
    model->out = out_folder;
    DSVI_TRY_GOTO(status, lora_model_find(model), done);
    DSVI_TRY_GOTO(status,
                  dsvi_lora_files_open(&files, model_path, model->two, &model->set[0], &model->set[1]), done);
    for (int i = 0; i <= model->two; i++)
        DSVI_TRY_GOTO(status, dsvi_lora_set_fit(&model->set[i], model->from[i]), done);
    status = lora_model_write(model);
done:
    dsvi_lora_set_close(&model->set[0]);
    dsvi_lora_set_close(&model->set[1]);
    free(model);
    return status;
}

DsvStatus dsv_lora_merge(const char *model_path, const char *lora_path, double scale, const char *out_folder)
{
    return dsv_lora_merge_experts(model_path, &lora_path, &scale, NULL, 1, out_folder);
}
