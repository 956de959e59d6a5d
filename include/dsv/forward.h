/* One pass of a model over tensors from a file: the way to compare dsv with any other implementation. */
#ifndef DSV_FORWARD_H
#define DSV_FORWARD_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads hidden_states (B, C, F, H, W), timestep (B), encoder_hidden_states (B, L, text_dim) and, with
 * `grad`, target (as hidden_states) from in_path. Writes to out_path, all F32: output; and with `grad`
 * loss (1), grad_hidden_states, grad_encoder_hidden_states and grad.<weight name> for every weight.
 * loss is the mean over all elements of (output - target)^2. config gives device, isa, threads,
 * mixed_precision, gradient_checkpointing and the sparse settings; attention is dense unless
 * config->sparse_enabled, and then every block runs sparse, guard aside. */
DsvStatus dsv_forward(const char *model_path, const char *in_path, const char *out_path, bool grad,
                      const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
