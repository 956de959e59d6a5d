/* Golden files: what PyTorch and diffusers computed. README.md in this folder says how they are made.
 *
 * Tests read the committed files of tests/golden. Where DSV_SHARED_DIR/fixtures has a folder of the same name
 * and form, golden_run() runs the same tests on that folder as well. */
#ifndef DSVI_TEST_GOLDEN_FILES_H
#define DSVI_TEST_GOLDEN_FILES_H

#include <stdbool.h>
#include <stdint.h>

enum { GOLDEN_NAME = 64, GOLDEN_CASES_MAX = 16 };

/* The path of "dit_a/config.json" and the like. Valid until the eighth call after this one. */
const char *golden_path(const char *relative);

/* Calls `run` with golden_path() in the committed files and, if that gives 0, again with golden_path() in
 * DSV_SHARED_DIR/fixtures, provided `folder` is there. Returns what the last call returned. */
int golden_run(const char *folder, int (*run)(void));

/* The names of the cases in `folder`, in the order of its fixture.json. Returns how many. */
int golden_cases(const char *folder, char name[GOLDEN_CASES_MAX][GOLDEN_NAME]);

/* One forward and backward pass of a transformer. */
typedef struct GoldenDit {
    char model[GOLDEN_NAME], name[GOLDEN_NAME]; /* files are in <model> and <model>/<name> */
    int64_t batch, frames, height, width, text_len;
    int64_t image_len; /* 0: the model takes no image rows */
    bool given_first;  /* the first latent frame has a time of its own, and no loss */
    /* relative L2 errors of PyTorch's BF16 autocast against its own F32 run */
    double bf16_output, bf16_dlatents, bf16_worst_grad;
} GoldenDit;

/* The cases of dit_a, then those of dit_c, dit_i2v, dit_clip, dit_flf and dit_ti2v. Returns how many. */
int golden_dit_cases(GoldenDit cases[GOLDEN_CASES_MAX]);

#endif
