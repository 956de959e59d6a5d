/* One training sample, as it passes from the data to the training step. */
#ifndef DSVI_SAMPLE_H
#define DSVI_SAMPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The caller provides `latent` and `text`, and sets the other fields to 0; the source of samples fills all.
 * All arrays are F32 in host memory. */
typedef struct DsviSample {
    float *latent; /* one latent, followed by the condition and the states of pictures that an image-to-video
                    * model takes */
    float *text;   /* room for text_len rows of text_dim elements; NULL: the model gets no text */
    int64_t text_rows;   /* number of text states written to `text`; the rows after them are undefined */
    const char *caption; /* owned by the source; NULL: none */
    int64_t passed_over; /* number of windows that could not be read before the one that was used */
} DsviSample;

#ifdef __cplusplus
}
#endif
#endif
