/* Contents of a run folder, read and checked. */
#ifndef DSVI_REPORT_DATA_H
#define DSVI_REPORT_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fs.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of numbers; NaN: no number. */
typedef struct DsviReportTable {
    int64_t rows, room, columns;
    double *cell; /* (room, columns), of which the first `rows` rows are filled */
} DsviReportTable;

static inline double dsvi_report_cell(const DsviReportTable *table, int64_t row, int64_t column)
{
    return table->cell[row * table->columns + column];
}

enum { DSVI_REPORT_BINS = 10 }; /* numbers in loss_bins of metrics.jsonl: bins of sigma, each 0.1 wide */

/* Columns of DsviReportData.steps, from metrics.jsonl. */
typedef enum DsviReportStep {
    DSVI_STEP,
    DSVI_LOSS,
    DSVI_GRAD_NORM,
    DSVI_LR,
    DSVI_STEP_MS,
    DSVI_TOKENS_PER_S,
    DSVI_DATA_WAIT_MS,
    DSVI_FORWARD_MS,
    DSVI_BACKWARD_MS,
    DSVI_OPTIMIZER_MS,
    DSVI_DENSITY,
    DSVI_SPARSE_BLOCKS,
    DSVI_CAPTURED_MASS,
    DSVI_OUTPUT_ERROR,
    DSVI_MEMORY_BYTES,
    DSVI_LOSS_BIN, /* the first of DSVI_REPORT_BINS columns */
    DSVI_STEP_COLUMNS = DSVI_LOSS_BIN + DSVI_REPORT_BINS
} DsviReportStep;

/* Columns of DsviReportData.blocks, from blocks.jsonl. */
typedef enum DsviReportBlock {
    DSVI_BLOCK_STEP,
    DSVI_BLOCK,
    DSVI_BLOCK_SPARSE,
    DSVI_BLOCK_DENSITY,
    DSVI_BLOCK_CAPTURED,
    DSVI_BLOCK_ERROR,
    DSVI_BLOCK_SHARE90,
    DSVI_BLOCK_HEADS /* first column of the per-head values: first each head's captured mass (fraction of the
                        exact attention weights on listed keys), then each head's share90 (smallest
                        fraction of all keys that holds 90 % of the attention weights), then each head's
                        output error (relative error of attention's output over lists and tail) */
} DsviReportBlock;

/* Columns of DsviReportData.validation, from validation.jsonl. */
typedef enum DsviReportValidation {
    DSVI_VALIDATION_STEP,
    DSVI_VALIDATION_LOSS,
    DSVI_VALIDATION_DENSE_LOSS,
    DSVI_VALIDATION_COLUMNS
} DsviReportValidation;

enum { DSVI_DECISIONS_MAX = 300, DSVI_VALIDATION_BINS_MAX = 64, DSVI_MEMORY_MAX = 16, DSVI_NAME_ROOM = 64 };

typedef struct DsviReportData {
    const char *folder;
    DsviReportTable steps, blocks, validation;
    int64_t block_count, heads; /* numbers of blocks and heads in blocks.jsonl */
    int64_t frames;             /* steps in `blocks` at which all blocks were measured */
    int64_t *frame;             /* (frames + 1) first row of each of these steps, and the end */

    int64_t decisions; /* number of decisions of the whole run; the newest DSVI_DECISIONS_MAX are kept */
    struct {
        double step;
        char *reason;
    } decision[DSVI_DECISIONS_MAX]; /* decision number i is at i % DSVI_DECISIONS_MAX */

    int64_t validation_bins; /* number of noise bins in the newest measurement of the held-out loss */
    double bin_sigma[DSVI_VALIDATION_BINS_MAX], bin_loss[DSVI_VALIDATION_BINS_MAX];

    /* From run.json; NaN and "" if a value is missing. */
    char device[128], version[32];
    double parameters, model_blocks, model_heads, head_dim, tokens, clips, planned_bytes;
    int64_t memory_classes;
    struct {
        char name[DSVI_NAME_ROOM];
        double bytes;
    } memory[DSVI_MEMORY_MAX];

    DsvConfig config; /* the defaults if config.yaml cannot be read */
    bool has_config;
    char config_problem[512]; /* why config.yaml cannot be read */
    char unfinished[256];     /* files whose last line is incomplete */
} DsviReportData;

/* Reads everything except the sampled clips. `folder` must outlive *out. *out is NULL after a failure. */
DsvStatus dsvi_report_read(const char *folder, DsviReportData **out);
void dsvi_report_data_free(DsviReportData **data);

/* Returns the row of `blocks` for `block` in frame f; -1 if the block was not measured then. */
int64_t dsvi_report_block_row(const DsviReportData *data, int64_t f, int64_t block);

/* Returns the mean of the numbers of a column in the rows first to last - 1; NaN if there are none. */
double dsvi_report_mean(const DsviReportTable *table, int64_t column, int64_t first, int64_t last);

#ifdef __cplusplus
}
#endif
#endif
