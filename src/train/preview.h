/* A run before it begins: are its settings sound together, and what memory will it take. */
#ifndef DSVI_PREVIEW_H
#define DSVI_PREVIEW_H

#include "ops/ops.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What settings that concern one rank lead to. Settings of the rank group (cp_size and the like) are left
 * out: they are checked when the ranks have met. */
typedef struct DsvPreview {
    DsvDitConfig config;
    DsvVideoShape latent;  /* of one clip */
    DsvArena device, host; /* counted, not allocated: the memory plan of a run on one rank */
} DsvPreview;

/* Plans a run as dsvi_trainer_create would and allocates nothing, reads no clip and writes no file. The error
 * is that of the first setting that does not go with the others: DSV_E_USAGE or DSV_E_SHAPE; or that of
 * model.path. */
DsvStatus dsvi_preview_make(const DsvConfig *settings, DsvBackend *backend, DsvPreview *out);

/* The same without its outcome, for a run about to begin. A resumed run may do without model.path: its
 * checkpoint holds the model's shape. */
DsvStatus dsvi_preview_check(const DsvConfig *settings, DsvBackend *backend);

/* What a run would be and take, line by line. DSV_E_NO_MEMORY, with settings that would fit, where the device
 * has not enough memory free. */
DsvStatus dsvi_preview_tell(const DsvConfig *settings, DsvBackend *backend,
                            void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
