/* The device and the checks that the files of the public attention interface (dsv/attention.h) share. */
#ifndef DSVI_ATTENTION_API_H
#define DSVI_ATTENTION_API_H

#include <pthread.h>

#include "dsv/attention.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct DsvDevice {
    DsviBackend backend;
    pthread_mutex_t lock; /* held by each call that computes on the device or changes an object of it */
    bool has_f64;         /* the operations are the reference implementations, which accept F64 */
    void *workspace;      /* device memory for calls that bring none; grows, and is shared by all objects */
    size_t workspace_bytes;
};

/* The tensors of a pass by name, for checks and messages. */
typedef enum DsviPassKind { DSVI_PASS_FORWARD, DSVI_PASS_BACKWARD } DsviPassKind;

/* Translates a public dtype. DSV_E_SHAPE if there is no such dtype, DSV_E_UNSUPPORTED if the device lacks
 * it. */
DsvStatus dsvi_attention_dtype(const DsvDevice *device, DsvDtype dtype, DsviDtype *act);
/* Checks that all tensors that a pass reads or writes are given, aligned to their elements, and that written
 * tensors have rows that do not overlap. DSV_E_SHAPE, naming the tensor. */
DsvStatus dsvi_attention_check_call(const DsvAttentionCall *call, DsviDtype act, int64_t head_dim,
                                    DsviPassKind kind);
DsviHeads dsvi_attention_rows(const DsvRows *rows);
/* Returns in *workspace the workspace of the call, which must have `bytes` bytes, or memory of the device if
 * the call brings none. The device is locked. */
DsvStatus dsvi_attention_workspace(DsvDevice *device, const DsvAttentionCall *call, size_t bytes,
                                   void **workspace);

#ifdef __cplusplus
}
#endif
#endif
