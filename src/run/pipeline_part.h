/* Recognises folders that are a part of a published diffusers pipeline other than its transformer. */
#ifndef DSVI_PIPELINE_PART_H
#define DSVI_PIPELINE_PART_H

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a description such as "the VAE (AutoencoderKLWan)" if `folder` is such a part,
 * otherwise NULL. The text is valid until the next call on this thread. */
const char *dsvi_pipeline_part(const char *folder);

#ifdef __cplusplus
}
#endif
#endif
