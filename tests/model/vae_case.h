/* A small VAE with random weights, written to the folder of a test (base/scratch.h). */
#ifndef DSVI_TEST_VAE_CASE_H
#define DSVI_TEST_VAE_CASE_H

#include "test.h"

#include "cpu/cpu.h"
#include "model/vae/vae.h"

/* Levels 1, 2 and 2 times base_dim wide; the second halves the frames. */
DsviVaeConfig vae_case_config(int64_t base_dim);
/* Writes config.json and the weights to the folder. `original`: with the names of the Wan repository. */
void vae_case_write(const char *folder, const DsviVaeConfig *config, bool original);
void vae_case_write_config(const char *folder, const DsviVaeConfig *config);
/* Returns `n` random numbers with variance 1; the caller frees them. */
float *vae_case_random(uint32_t stream, int64_t n);

#endif
