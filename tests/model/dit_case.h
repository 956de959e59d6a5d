/* A transformer on the CPU with everything it reads and writes, for tests. */
#ifndef DIT_CASE_H
#define DIT_CASE_H

#include "test.h"

#include "cpu/cpu.h"
#include "model/dit.h"

typedef struct DitCase {
    DsvBackend backend;
    DsvDitConfig config;
    DsvDitShape shape;
    DsvDtype acc;
    DsvParamTable table;
    DsvSparse *sparse; /* NULL: dense */
    DsvDit *dit;
    int64_t in_elements, out_elements, text_elements; /* of the batch */

    void *memory;
    DsvDitWeights weights; /* with shape.grad_begin lent as fresh, gradients in the plan's room */
    /* acc */
    void *latents, *timestep, *text, *target, *output, *doutput, *loss, *dlatents, *dtext;
} DitCase;

/* Makes the model of `config` and `shape` on the CPU at level `isa` with `threads` threads; with `settings`
 * (may be NULL) attention goes through the sparse layer. All memory but gradients starts as NaN. */
void dit_case_open(DitCase *c, const DsvDitConfig *config, const DsvDitShape *shape, const char *isa,
                   int threads, const DsvConfig *settings);
void dit_case_close(DitCase *c);

/* The flat host array to the weights. */
void dit_case_set_weights(DitCase *c, const float *flat);
/* A stored tensor, all of it, to one of the acc arrays above. */
void dit_case_set(DitCase *c, void *array, const DsvSafetensors *file, const char *name);
/* Random normal latents, text and target from `stream`, and times between 0 and 1000. */
void dit_case_randomise(DitCase *c, uint32_t stream);

/* Forward. */
void dit_case_forward(DitCase *c);
/* Forward, loss and backward into zeroed gradients: by way of the output, and without it. */
void dit_case_gradients(DitCase *c);
void dit_case_loss_gradients(DitCase *c);
/* Mean of loss over the batch. */
double dit_case_loss(const DitCase *c);
/* Gradient of a parameter, acc. */
const void *dit_case_grad(const DitCase *c, int64_t param);

/* All results bit for bit equal: output, and with `grad` every gradient. */
void dit_case_assert_equal(const DitCase *a, const DitCase *b, bool grad);

/* Two blocks of three heads of 32, ragged everywhere. */
DsvDitConfig dit_case_small_config(void);
/* B = 2, 2 x 3 x 5 tokens, 5 text rows. */
DsvDitShape dit_case_small_shape(DsvDtype act);
/* Random weights with nothing zero or one about them; to be freed. */
float *dit_case_random_weights(const DsvParamTable *table, double deviation);

#endif
