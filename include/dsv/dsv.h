/** @file
 * All public headers of libdsv, which trains and samples video diffusion transformers with dynamic sparse
 * attention. */

/** @mainpage libdsv
 *
 * Fill a DsvConfig (config.h), then call one function:
 *
 * | function | header | what it does |
 * |---|---|---|
 * | dsv_train(), dsv_train_preview() | train.h | trains a model; shows what a run needs |
 * | dsv_train_ranks() | ranks.h | trains on several processes |
 * | dsv_sample() | sample.h | samples a clip |
 * | dsv_encode() | encode.h | encodes clips to latents once |
 * | dsv_decode() | decode.h | decodes stored latents to a clip |
 * | dsv_text() | text.h | encodes prompts with the text encoder of a published pipeline |
 * | dsv_forward() | forward.h | one pass over tensors from a file |
 * | dsv_inspect() | inspect.h | describes a file or folder |
 * | dsv_lora_convert(), dsv_lora_merge() | lora.h | LoRA files: other names; adding one to a model |
 * | dsv_report() | report.h | writes a run as one HTML page |
 * | dsv_plan() | plan.h | plans context parallelism |
 * | dsv_device_open(), dsv_attention_create() | attention.h | sparse attention for a program that has its own
 * model | | dsv_bench_attention(), dsv_bench_context(), dsv_bench_step() | bench.h | measure |
 *
 * Each returns a DsvStatus (status.h) and reports progress through DsvEvents (events.h). The library does
 * not print, exit or read the environment. The program `dsv` is built on these calls alone.
 *
 * Letters in shapes: B batch, C channels, F frames, H rows, W columns, L text rows, S tokens, N heads, D
 * elements of a head. Tensors are contiguous, the last dimension fastest.
 *
 * Strings are UTF-8 paths or texts that end with a zero byte. The library copies what it keeps: every
 * argument may be freed when the call returns. */
#ifndef DSV_DSV_H
#define DSV_DSV_H

#include "dsv/attention.h"
#include "dsv/bench.h"
#include "dsv/config.h"
#include "dsv/decode.h"
#include "dsv/encode.h"
#include "dsv/events.h"
#include "dsv/forward.h"
#include "dsv/inspect.h"
#include "dsv/lora.h"
#include "dsv/plan.h"
#include "dsv/ranks.h"
#include "dsv/report.h"
#include "dsv/sample.h"
#include "dsv/status.h"
#include "dsv/text.h"
#include "dsv/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the version of the library that is running.
 * @return static: "0.2.0" */
const char *dsv_version(void);

#ifdef __cplusplus
}
#endif
#endif
