/* A transformer on the CPU with all arrays that it reads and writes, for tests. */
#ifndef DIT_CASE_H
#define DIT_CASE_H

#include "test.h"

#include "cpu/cpu.h"
#include "model/dit/dit.h"

typedef struct DitCase {
    DsviBackend backend;
    DsviDitConfig config;
    DsviDitShape shape;
    DsviDtype acc;
    DsviParamTable table;
    DsviSparse *sparse; /* NULL: dense attention */
    DsviDit *dit;
    int64_t times;                                                    /* elements of timestep */
    int64_t in_elements, out_elements, text_elements, image_elements; /* of the arrays of the whole batch */

    const DsviDitKept *kept; /* NULL: what the shape says */
    void *memory, *host_memory;
    DsviDitWeights weights; /* with shape.grad_begin the gradients are in memory that the model has planned */
    /* arrays of dtype acc */
    void *latents, *timestep, *text, *image, *target, *output, *doutput, *loss, *dlatents, *dtext, *dimage;
} DitCase;

/* Creates the model of `config` and `shape` on the CPU with instruction set `isa` and `threads` threads. With
 * `settings` (may be NULL) attention runs through the sparse layer. All memory except gradients starts as
 * NaN. dit_case_close releases everything. */
void dit_case_open(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape, const char *isa,
                   int threads, const DsvConfig *settings);
/* As dit_case_open, with dense attention, two threads and the LoRA shape->lora, whose matrices are `lora`. */
void dit_case_open_lora(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape, const char *isa,
                        const DsviDitWeights *lora);
/* As dit_case_open, with dense attention, two threads and what each block keeps: (num_layers). */
void dit_case_open_kept(DitCase *c, const DsviDitConfig *config, const DsviDitShape *shape,
                        const DsviDitKept *kept);
void dit_case_close(DitCase *c);

/* Copies the flat host array (table.elements) to the weights. */
void dit_case_set_weights(DitCase *c, const float *flat);
/* Copies the whole stored tensor `name` to `array`, one of the acc arrays of `c`. */
void dit_case_set(DitCase *c, void *array, const DsviSafetensors *file, const char *name);
/* Fills latents, text, image and target with random normal numbers that follow from `stream`, and timesteps
 * with uniform numbers between 0 and 1000. */
void dit_case_randomise(DitCase *c, uint32_t stream);

/* Runs the forward pass from latents, timestep and text to output. */
void dit_case_forward(DitCase *c);
/* Clear the gradients, then run forward pass, loss and backward pass. dit_case_gradients computes the loss
 * from the output; dit_case_loss_gradients lets the model compute the loss without storing the output. */
void dit_case_gradients(DitCase *c);
void dit_case_loss_gradients(DitCase *c);
/* Returns the mean loss of the batch. */
double dit_case_loss(const DitCase *c);
/* Returns the gradient of a parameter, in dtype acc; owned by the case. */
const void *dit_case_grad(const DitCase *c, int64_t param);

/* Fails the test unless the outputs and, with `grad`, all gradients have the same bits. */
void dit_case_assert_equal(const DitCase *a, const DitCase *b, bool grad);

/* Two blocks with three heads of size 32; the other sizes are not multiples of tile or vector sizes. */
DsviDitConfig dit_case_small_config(void);
/* Two samples with 2 x 3 x 5 tokens and 5 text rows. */
DsviDitShape dit_case_small_shape(DsviDtype act);
/* Returns random weights, none exactly zero or one; the caller frees them with free(). */
float *dit_case_random_weights(const DsviParamTable *table, double deviation);

#endif
