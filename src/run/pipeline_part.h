/* Recognises folders of published diffusers pipelines, and their parts that this version cannot use. */
#ifndef DSVI_PIPELINE_PART_H
#define DSVI_PIPELINE_PART_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a description such as "the VAE (AutoencoderKLWan)" if `folder` is a part that dsv cannot use,
 * otherwise NULL. The text is valid until the next call on this thread. */
const char *dsvi_pipeline_part(const char *folder);

/* Returns whether the folder is a whole pipeline, that is, has a model_index.json. */
bool dsvi_pipeline_is(const char *folder);

#ifdef __cplusplus
}
#endif
#endif
