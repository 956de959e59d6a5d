/** @file
 * The text encoder of a published pipeline: ids and hidden states of prompts. */
#ifndef DSV_TEXT_H
#define DSV_TEXT_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Computes ids and hidden states of prompts as the Wan pipelines do.
 *
 * `prompts_path` is a text file in UTF-8 with one prompt on each line. An empty line is the empty prompt; the
 * newline at the end of the last line begins no further prompt. Each prompt is cleaned, and its ids are cut
 * to 512, the end token kept, after a warning.
 *
 * Written to `out_path` for each prompt, numbered from 0 in the order of the lines:
 *
 * | tensor        | dtype, shape      | what                                                          |
 * |---------------|-------------------|---------------------------------------------------------------|
 * | `input_ids.0` | I32 (n)           | ids without padding; the last is the end token, 1             |
 * | `hidden.0`    | F32 (n, d_model)  | hidden states; a Wan pipeline adds zero rows up to 512        |
 *
 * @param model_path   a pipeline folder (with text_encoder/ and tokenizer/), a text encoder folder with the
 *     tokenizer in it or beside it, a folder of the Wan repository with its text encoder as safetensors, or
 *     one safetensors file that also has the tensor `spiece_model`
 * @param prompts_path at most 65,536 bytes on each line
 * @param out_path     written under a temporary name and renamed
 * @param config       device, isa, threads and mixed_precision
 * @param events       may be NULL; `progress` counts prompts; `log` warns of prompts that are cut
 * @return DSV_E_NOT_FOUND for a missing file; DSV_E_FORMAT names the line that is not UTF-8 or too long;
 *     DSV_E_UNSUPPORTED for another text encoder; DSV_E_SHAPE for weights that do not fit; DSV_E_NO_MEMORY;
 *     DSV_E_INTERRUPTED, after which nothing is written; DSV_E_IO */
DsvStatus dsv_text(const char *model_path, const char *prompts_path, const char *out_path,
                   const DsvConfig *config, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
