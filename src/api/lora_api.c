/* dsv_lora_convert and dsv_lora_merge (include/dsv/lora.h). */
#include "dsv/lora.h"

#include <math.h>
#include <string.h>

#include "base/fs.h"
#include "model/lora/lora.h"
#include "run/model_path.h"

DsvStatus dsv_lora_convert(const char *in_path, const char *out_path, const char *form_name)
{
    DsviLora lora;
    DsviLoraForm form;
    DSVI_TRY(dsvi_lora_form_find(form_name, &form));
    DSVI_TRY(dsvi_model_refuse_pickle(in_path));
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
    bool transformer; /* the safetensors files of the folder itself are written by the merge */
} LoraCopy;

static DsvStatus copy_entry(void *context, const char *name)
{
    const LoraCopy *copy = context;
    char from[DSVI_PATH_MAX], to[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(from, copy->from, name));
    DSVI_TRY(dsvi_path_join(to, copy->to, name));
    if (dsvi_path_is_folder(from)) {
        LoraCopy inner = {.from = from, .to = to, .transformer = strcmp(name, "transformer") == 0};
        DSVI_TRY(dsvi_folder_make(to));
        return dsvi_folder_list(from, copy_entry, &inner);
    }
    if (copy->transformer && is_safetensors(name))
        return DSV_OK;
    return dsvi_file_copy(from, to);
}

static DsvStatus refuse_entry(void *context, const char *name)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s holds %s, expected a new or empty folder", (const char *)context, name);
}

static DsvStatus lora_merge_folder(const DsviLora *lora, double scale, const char *model, const char *out)
{
    char transformer[DSVI_PATH_MAX], to[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(transformer, model, "transformer"));
    bool pipeline = dsvi_path_is_folder(transformer);
    LoraCopy copy = {.from = model, .to = out, .transformer = !pipeline};
    DSVI_TRY(dsvi_path_join(to, out, "transformer"));
    if (pipeline)
        DSVI_TRY(dsvi_folder_make(to));
    DSVI_TRY(dsvi_lora_merge(lora, scale, pipeline ? transformer : model, pipeline ? to : out));
    return dsvi_folder_list(model, copy_entry, &copy);
}

DsvStatus dsv_lora_merge(const char *model_path, const char *lora_path, double scale, const char *out_folder)
{
    DsviLora lora;
    DsvStatus status;
    if (!isfinite(scale))
        return DSVI_FAIL(DSV_E_USAGE, "the scale of a LoRA is %g, expected a finite number", scale);
    if (!dsvi_path_exists(model_path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such model folder or file", model_path);
    DSVI_TRY(dsvi_model_refuse_pickle(lora_path));
    DSVI_TRY(dsvi_lora_open(lora_path, &lora));
    DSVI_TRY_GOTO(status, dsvi_folder_make(out_folder), done);
    DSVI_TRY_GOTO(status, dsvi_folder_list(out_folder, refuse_entry, (void *)out_folder), done);
    status = dsvi_path_is_folder(model_path) ? lora_merge_folder(&lora, scale, model_path, out_folder)
                                             : dsvi_lora_merge(&lora, scale, model_path, out_folder);
done:
    dsvi_lora_close(&lora);
    return status;
}
