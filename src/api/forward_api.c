/* dsv_forward (include/dsv/forward.h): recognises what kind of model a path names, and runs the model on
 * tensors from a file. */
#include "dsv/forward.h"

#include "api/forward_parts.h"
#include "base/config_abi.h"
#include "base/fs.h"
#include "model/vit/vit.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"

DsvStatus dsv_forward(const char *model_path, const char *in_path, const char *out_path, bool grad,
                      const DsvConfig *settings)
{
    return dsv_forward_lora(model_path, NULL, in_path, out_path, grad, settings);
}

DsvStatus dsv_forward_lora(const char *model_path, const char *lora_path, const char *in_path,
                           const char *out_path, bool grad, const DsvConfig *settings)
{
    const DsviForwardFiles files = {.model = model_path, .lora = lora_path, .in = in_path, .out = out_path};
    DSVI_TRY(dsvi_config_check_abi(settings));
    DSVI_TRY(dsvi_file_check_writable(out_path));
    if (lora_path && (dsvi_umt5_is(model_path) || dsvi_vit_is(model_path)))
        return DSVI_FAIL(DSV_E_USAGE, "%s is an encoder, expected a transformer for the LoRA %s", model_path,
                         lora_path);
    if (dsvi_umt5_is(model_path))
        return dsvi_forward_text(&files, grad, settings);
    if (dsvi_vit_is(model_path))
        return dsvi_forward_image(&files, grad, settings);
    if (dsvi_vae_is(model_path))
        return dsvi_forward_vae(&files, grad, settings);
    return dsvi_forward_dit(&files, grad, settings);
}
