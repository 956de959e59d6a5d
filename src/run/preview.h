/* Checks before a run whether its options are consistent, and how much memory it will need. */
#ifndef DSVI_PREVIEW_H
#define DSVI_PREVIEW_H

#include "ops/ops.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A preview always assumes one rank. Options for several ranks (cp_size and similar) are ignored; they are
 * checked when the ranks have connected. */
typedef struct DsviPreview {
    DsviDitConfig config;
    DsviVideoShape latent;  /* shape of one window's latent */
    DsviArena device, host; /* memory plan of a run on one rank; nothing is allocated */
} DsviPreview;

/* Plans a run like dsvi_trainer_create, but does not allocate the run's memory, read clips or write
 * files. Options that contradict each other give DSV_E_USAGE or DSV_E_SHAPE. Errors of model.path are
 * returned too. */
DsvStatus dsvi_preview_make(const DsvConfig *settings, DsviBackend *backend, DsviPreview *out);

/* Makes a preview and returns only its status. Makes none if a run that trains all weights of model.path is
 * resumed: the checkpoint gives the model's shape, and not every rank may see it. */
DsvStatus dsvi_preview_check(const DsvConfig *settings, DsviBackend *backend);

/* Like dsvi_preview_check, for a run of `ranks`, but with data.buckets=auto it opens the clips at data.path
 * to find their sizes, and it reads the model's shape from the checkpoint of a resumed run, which the caller
 * must see. Also checks that a run of one rank has enough memory. */
DsvStatus dsvi_preview_check_clips(const DsvConfig *settings, DsviBackend *backend, int64_t ranks);

/* Reports the data (if data.path is set), the model and the memory plan of a run through `line`, line by
 * line. Returns DSV_E_NO_MEMORY if the device has not enough free memory; the message names options with
 * which the run would fit. `speeds`: from which offload=auto predicts times; NULL: measured. */
DsvStatus dsvi_preview_report(const DsvConfig *settings, DsviBackend *backend, const DsviDeviceSpeeds *speeds,
                              void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
