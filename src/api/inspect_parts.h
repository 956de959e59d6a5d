/* What the files of dsv_inspect share. Only inspect_*.c include this header. */
#ifndef DSVI_INSPECT_PARTS_H
#define DSVI_INSPECT_PARTS_H

#include "base/safetensors.h"
#include "model/dit/dit_config.h"
#include "model/folder/wan_folder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the description goes, line by line. */
typedef struct DsviInspection {
    void (*line)(void *context, const char *text);
    void *context;
} DsviInspection;

void dsvi_inspect_print(const DsviInspection *to, const char *format, ...) DSVI_PRINTF(2, 3);

/* Adds to *bad how many numbers of the tensor are not finite. */
DsvStatus dsvi_inspect_not_finite(const DsviSafetensors *file, const DsviStoredTensor *tensor, int64_t *bad);
/* Describes a transformer, and checks all its weights. `weights` is as for dsvi_weights_read. */
DsvStatus dsvi_inspect_transformer(const DsviInspection *to, const char *weights, const DsviDitConfig *sizes);

/* Describes all parts of a published model and checks them. A part that is not sound does not end the
 * description; the function then fails. */
DsvStatus dsvi_inspect_wan(const DsviInspection *to, const DsviWanFolder *folder);
/* Describes one part that is a folder, such as vae/, and checks it. */
DsvStatus dsvi_inspect_wan_part(const DsviInspection *to, const char *path);

#ifdef __cplusplus
}
#endif
#endif
