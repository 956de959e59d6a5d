/* What all oneDNN primitives of the CPU backend share: the engine, one oneDNN stream for each worker, and
 * steps of creating a primitive. Uses the C interface of oneDNN 2.x. */
#ifndef DSVI_ONEDNN_ENGINE_H
#define DSVI_ONEDNN_ENGINE_H

#include <dnnl.h>
#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"
#include "cpu/cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviOnednn {
    dnnl_engine_t engine;
    int workers;
    dnnl_stream_t *streams; /* (workers) */
} DsviOnednn;

/* Limits the instructions that oneDNN uses to those of `isa`. oneDNN accepts the limit once per process,
 * before its first use; later calls with other values have no effect. */
void dsvi_onednn_limit(DsviIsa isa);

/* dsvi_onednn_close also takes a cleared or half-opened *onednn, and clears it. */
DsvStatus dsvi_onednn_open(int workers, DsviOnednn *onednn);
void dsvi_onednn_close(DsviOnednn *onednn);

dnnl_data_type_t dsvi_onednn_type(int64_t dtype); /* of F32 or BF16 */

/* Returns the DsvStatus that corresponds to a status of oneDNN. */
DsvStatus dsvi_onednn_status(dnnl_status_t status);

/* Creates attributes: the caller provides the scratchpad and, with `accumulate`, results are added to what
 * the destination holds. */
dnnl_status_t dsvi_onednn_attributes(bool accumulate, dnnl_primitive_attr_t *attr);

/* Creates the primitive that copies an array from the layout `from` to the layout `to`; *pack becomes NULL if
 * the layouts are equal. */
dnnl_status_t dsvi_onednn_make_pack(dnnl_engine_t engine, const dnnl_memory_desc_t *from,
                                    const dnnl_memory_desc_t *to, dnnl_primitive_t *pack);

/* Creates a memory object without an address. */
dnnl_status_t dsvi_onednn_make_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc,
                                      dnnl_memory_t *memory);

/* Calls create(context) inside a parallel loop of one worker and returns its result. oneDNN optimises a
 * primitive for the number of threads that it sees at creation, and inside the loop it sees one. */
typedef dnnl_status_t dsvi_onednn_create_fn(void *context);
dnnl_status_t dsvi_onednn_on_one_thread(dsvi_onednn_create_fn *create, void *context);

#ifdef __cplusplus
}
#endif
#endif
