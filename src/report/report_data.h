/* What the folder of a run holds, read and checked. */
#ifndef DSVI_REPORT_DATA_H
#define DSVI_REPORT_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fs.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of numbers, NaN where there is none. */
typedef struct DsvReportTable {
    int64_t rows, room, columns;
    double *cell; /* (room, columns), of which `rows` are filled */
} DsvReportTable;

static inline double dsvi_report_cell(const DsvReportTable *table, int64_t row, int64_t column)
{
    return table->cell[row * table->columns + column];
}

enum { DSVI_REPORT_BINS = 10 }; /* noise levels of loss_bins: tenths of sigma */

/* Columns of DsvReportData.steps, from metrics.jsonl. */
typedef enum DsvReportStep {
    DSVI_STEP, DSVI_LOSS, DSVI_GRAD_NORM, DSVI_LR, DSVI_STEP_MS, DSVI_TOKENS_PER_S, DSVI_DATA_WAIT_MS,
    DSVI_FORWARD_MS, DSVI_BACKWARD_MS, DSVI_OPTIMIZER_MS, DSVI_DENSITY, DSVI_SPARSE_BLOCKS,
    DSVI_CAPTURED_MASS, DSVI_MEMORY_BYTES,
    DSVI_LOSS_BIN, /* the first of them */
    DSVI_STEP_COLUMNS = DSVI_LOSS_BIN + DSVI_REPORT_BINS
} DsvReportStep;

/* Columns of DsvReportData.blocks, from blocks.jsonl. */
typedef enum DsvReportBlock {
    DSVI_BLOCK_STEP, DSVI_BLOCK, DSVI_BLOCK_SPARSE, DSVI_BLOCK_DENSITY, DSVI_BLOCK_CAPTURED,
    DSVI_BLOCK_SHARE90,
    DSVI_BLOCK_HEADS /* (heads) captured masses, then (heads) shares */
} DsvReportBlock;

/* Columns of DsvReportData.validation, from validation.jsonl. */
typedef enum DsvReportValidation {
    DSVI_VALIDATION_STEP, DSVI_VALIDATION_LOSS, DSVI_VALIDATION_DENSE_LOSS, DSVI_VALIDATION_COLUMNS
} DsvReportValidation;

enum {
    DSVI_DECISIONS_MOST = 300, DSVI_VALIDATION_BINS_MOST = 64, DSVI_MEMORY_MOST = 16, DSVI_NAME_ROOM = 64
};

typedef struct DsvReportData {
    const char *folder;
    DsvReportTable steps, blocks, validation;
    int64_t block_count, heads;  /* as blocks.jsonl has them */
    int64_t frames;              /* measuring steps in `blocks` */
    int64_t *frame;              /* (frames + 1) the first row of each, and the end */

    int64_t decisions;           /* of the whole run; the newest DSVI_DECISIONS_MOST are kept */
    struct {
        double step;
        char *reason;            /* decision i is at i % DSVI_DECISIONS_MOST */
    } decision[DSVI_DECISIONS_MOST];

    int64_t validation_bins;     /* of the newest validation */
    double bin_sigma[DSVI_VALIDATION_BINS_MOST], bin_loss[DSVI_VALIDATION_BINS_MOST];

    /* run.json; NaN and "" where there is none */
    char device[128], version[32];
    double parameters, model_blocks, model_heads, head_dim, tokens, clips, planned_bytes;
    int64_t memory_classes;
    struct {
        char name[DSVI_NAME_ROOM];
        double bytes;
    } memory[DSVI_MEMORY_MOST];

    DsvConfig config;            /* the defaults where there is none */
    bool has_config;
    char config_problem[512];    /* why there is none */
    char unfinished[256];        /* files whose last line is not whole */
} DsvReportData;

/* Everything but the sampled clips. `folder` must outlive the data; on failure nothing is held. */
DsvStatus dsvi_report_read(const char *folder, DsvReportData **out);
void dsvi_report_data_free(DsvReportData **data);

/* The row of `block` among the measurements of frame f; -1: none. */
int64_t dsvi_report_block_row(const DsvReportData *data, int64_t f, int64_t block);

/* Mean of a column's numbers over rows first to last - 1; NaN where there are none. */
double dsvi_report_mean(const DsvReportTable *table, int64_t column, int64_t first, int64_t last);

#ifdef __cplusplus
}
#endif
#endif
