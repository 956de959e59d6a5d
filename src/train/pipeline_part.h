/* Parts of published pipelines (diffusers' folders) that this version cannot use, told by their files. */
#ifndef DSVI_PIPELINE_PART_H
#define DSVI_PIPELINE_PART_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "the VAE (AutoencoderKLWan)" and the like, valid until the next call on this thread; NULL: `folder` is no
 * such part. */
const char *dsvi_pipeline_part(const char *folder);

/* Whether the folder is a whole pipeline: it has a model_index.json. */
bool dsvi_pipeline_is(const char *folder);

#ifdef __cplusplus
}
#endif
#endif
