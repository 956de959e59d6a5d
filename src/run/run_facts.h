/* Facts about a run that are known before its first step: model size, device and memory plan; written to
 * run.json. */
#ifndef DSVI_RUN_FACTS_H
#define DSVI_RUN_FACTS_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviRunFacts {
    const DsviTrainer *trainer;
    int64_t clips;                       /* number of clips or cached windows that are trained on */
    size_t memory[DSVI_MEM_CLASS_COUNT]; /* planned bytes of device memory of each class; on a CPU host
                                          * memory */
    size_t host;                         /* GPU only: bytes of batches and samples in host memory */
    size_t host_lists;                   /* GPU only: bytes of key lists offloaded to host memory */
    size_t host_state;                   /* GPU only: bytes of weights and optimizer state in host memory */
    size_t host_gradients;               /* GPU only: bytes of gradients in host memory */
    size_t host_kept;                    /* GPU only: bytes of kept activations in host memory */
    size_t host_weights;                 /* GPU only: bytes of frozen weights in host memory */
    size_t program;                      /* bytes of code and libraries in host memory */
    size_t total;                        /* planned bytes of device memory, without the CUDA context and
                                          * libraries; on a CPU with code and libraries */
} DsviRunFacts;

/* Collects the facts. `prefetch` is the bytes of prefetched samples, `program` the bytes of code and
 * libraries; both are added to the trainer's memory plan. `facts` keeps a pointer to the trainer. */
void dsvi_run_facts(const DsviTrainer *trainer, size_t prefetch, size_t program, int64_t clips,
                    DsviRunFacts *facts);

/* Writes the memory plan as one line of text: total bytes and bytes of each class. */
void dsvi_run_facts_memory(const DsviRunFacts *facts, char *line, size_t line_bytes);

/* Finds the device memory that decoding sampled clips takes beside the `taken` bytes of the run, and limits
 * the codec to what memory_gib and the device leave: *bytes, 0 if no clip is sampled. `free_bytes`: of the
 * device, beside the run. DSV_E_NO_MEMORY if decoding does not fit. */
DsvStatus dsvi_run_facts_decoding(const DsvConfig *settings, DsviBackend *backend, DsviCodec *codec,
                                  size_t taken, size_t free_bytes, uint64_t *bytes);
/* Writes the line that says how much `bytes` are. */
void dsvi_run_facts_decoding_text(uint64_t bytes, char *line, size_t line_bytes);

/* Writes the facts to `path` as one JSON object. */
DsvStatus dsvi_run_facts_write(const DsviRunFacts *facts, const char *path);

#ifdef __cplusplus
}
#endif
#endif
