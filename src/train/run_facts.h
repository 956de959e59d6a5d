/* What is known of a run before its first step: the model's size, the device, the memory plan. */
#ifndef DSVI_RUN_FACTS_H
#define DSVI_RUN_FACTS_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvRunFacts {
    const DsvTrainer *trainer;
    int64_t clips;                            /* or cached windows, to train on */
    size_t memory[DSV_MEM_CLASS_COUNT];       /* bytes of each class planned on the device; on the CPU that is
                                               * the host */
    size_t host;                              /* on a GPU: bytes of batches and samples on the host */
    size_t host_lists;                        /* and of lists that wait there for their backward pass */
    size_t program;                           /* bytes of code and libraries, on the host */
    size_t total;                             /* bytes planned on the device, where its context, libraries and
                                               * others take more; on the CPU with code and libraries */
} DsvRunFacts;

/* `prefetch` bytes of samples in flight and `program` bytes come on top of what the trainer has planned. */
void dsvi_run_facts(const DsvTrainer *trainer, size_t prefetch, size_t program, int64_t clips,
                    DsvRunFacts *facts);

/* The memory preview: one line, which class takes what. */
void dsvi_run_facts_memory(const DsvRunFacts *facts, char *line, size_t line_bytes);

/* All of it as one JSON object. */
DsvStatus dsvi_run_facts_write(const DsvRunFacts *facts, const char *path);

#ifdef __cplusplus
}
#endif
#endif
