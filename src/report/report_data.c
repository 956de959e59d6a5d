/* See report_data.h. */
#include "report/report_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "report/report_lines.h"

enum { BLOCKS_MAX = 1024, HEADS_MAX = 1024, FACTS_BYTES_MAX = 1 << 20 };

static DsvStatus add_table_row(DsviReportTable *table, double **row)
{
    if (table->rows == table->room) {
        int64_t room = table->room ? 2 * table->room : 256;
        double *cell = realloc(table->cell, (size_t)(room * table->columns) * sizeof *cell);
        if (!cell)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld lines of metrics", (long long)room);
        table->cell = cell;
        table->room = room;
    }
    *row = table->cell + table->rows++ * table->columns;
    return DSV_OK;
}

static DsvStatus take_step_line(DsviReportData *data, const DsviReportLines *lines)
{
    static const char *const name[DSVI_LOSS_BIN] = {
        [DSVI_STEP] = "step",
        [DSVI_LOSS] = "loss",
        [DSVI_GRAD_NORM] = "grad_norm",
        [DSVI_LR] = "lr",
        [DSVI_STEP_MS] = "step_ms",
        [DSVI_TOKENS_PER_S] = "tokens_per_s",
        [DSVI_DATA_WAIT_MS] = "data_wait_ms",
        [DSVI_FORWARD_MS] = "forward_ms",
        [DSVI_BACKWARD_MS] = "backward_ms",
        [DSVI_OPTIMIZER_MS] = "optimizer_ms",
        [DSVI_DENSITY] = "density",
        [DSVI_SPARSE_BLOCKS] = "sparse_blocks",
        [DSVI_CAPTURED_MASS] = "captured_mass",
        [DSVI_OUTPUT_ERROR] = "output_error",
        [DSVI_MEMORY_BYTES] = "memory_bytes",
    };
    DsviReportTable *steps = &data->steps;
    double *row = NULL;
    if (steps->rows > 0 && dsvi_report_cell(steps, steps->rows - 1, DSVI_STEP) == lines->step)
        return dsvi_lines_refuse(lines, "step %.0f a second time", lines->step);
    DSVI_TRY(add_table_row(steps, &row));
    for (int c = 0; c < DSVI_LOSS_BIN; c++)
        DSVI_TRY(dsvi_lines_number(lines, lines->object, name[c], &row[c]));
    return dsvi_lines_numbers(lines, "loss_bins", DSVI_REPORT_BINS, row + DSVI_LOSS_BIN);
}

/* Takes the number of heads from the first line of blocks.jsonl. */
static DsvStatus count_heads(DsviReportData *data, const DsviReportLines *lines)
{
    const cJSON *heads;
    DSVI_TRY(dsvi_lines_array(lines, "head_captured", &heads));
    data->heads = heads ? cJSON_GetArraySize(heads) : 0;
    if (data->heads > HEADS_MAX)
        return dsvi_lines_refuse(lines, "%lld heads, expected at most %d", (long long)data->heads, HEADS_MAX);
    data->blocks.columns = DSVI_BLOCK_HEADS + 3 * data->heads;
    return DSV_OK;
}

static DsvStatus take_block_line(DsviReportData *data, const DsviReportLines *lines)
{
    DsviReportTable *blocks = &data->blocks;
    const cJSON *sparse = cJSON_GetObjectItemCaseSensitive(lines->object, "sparse");
    int64_t block;
    double *row = NULL;
    if (blocks->rows == 0)
        DSVI_TRY(count_heads(data, lines));
    DSVI_TRY(dsvi_lines_index(lines, "block", BLOCKS_MAX - 1, &block));
    if (!cJSON_IsBool(sparse))
        return dsvi_lines_refuse(lines, "sparse is neither true nor false");
    if (blocks->rows > 0 && dsvi_report_cell(blocks, blocks->rows - 1, DSVI_BLOCK_STEP) == lines->step &&
        dsvi_report_cell(blocks, blocks->rows - 1, DSVI_BLOCK) >= (double)block)
        return dsvi_lines_refuse(lines, "block %lld of step %.0f is out of order", (long long)block,
                                 lines->step);
    DSVI_TRY(add_table_row(blocks, &row)); /* count_heads has set how many columns a row has */
    row[DSVI_BLOCK_STEP] = lines->step;    /* NOLINT(clang-analyzer-unix.Malloc) */
    row[DSVI_BLOCK] = (double)block;
    row[DSVI_BLOCK_SPARSE] = cJSON_IsTrue(sparse);
    data->block_count = block + 1 > data->block_count ? block + 1 : data->block_count;
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "density", &row[DSVI_BLOCK_DENSITY]));
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "captured_mass", &row[DSVI_BLOCK_CAPTURED]));
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "output_error", &row[DSVI_BLOCK_ERROR]));
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "share90", &row[DSVI_BLOCK_SHARE90]));
    DSVI_TRY(dsvi_lines_numbers(lines, "head_captured", data->heads, row + DSVI_BLOCK_HEADS));
    DSVI_TRY(dsvi_lines_numbers(lines, "head_share90", data->heads, row + DSVI_BLOCK_HEADS + data->heads));
    return dsvi_lines_numbers(lines, "head_error", data->heads, row + DSVI_BLOCK_HEADS + 2 * data->heads);
}

static DsvStatus take_decision_line(DsviReportData *data, const DsviReportLines *lines)
{
    const cJSON *reason = cJSON_GetObjectItemCaseSensitive(lines->object, "reason");
    int64_t i = data->decisions++ % DSVI_DECISIONS_MAX;
    if (!cJSON_IsString(reason))
        return dsvi_lines_refuse(lines, "reason is not a text");
    free(data->decision[i].reason);
    data->decision[i].step = lines->step;
    data->decision[i].reason = strdup(reason->valuestring);
    return data->decision[i].reason ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a decision");
}

static DsvStatus take_validation_line(DsviReportData *data, const DsviReportLines *lines)
{
    const cJSON *bins, *bin;
    double *row = NULL;
    DSVI_TRY(add_table_row(&data->validation, &row));
    row[DSVI_VALIDATION_STEP] = lines->step;
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "loss", &row[DSVI_VALIDATION_LOSS]));
    DSVI_TRY(dsvi_lines_number(lines, lines->object, "dense_loss", &row[DSVI_VALIDATION_DENSE_LOSS]));
    DSVI_TRY(dsvi_lines_array(lines, "bins", &bins));
    data->validation_bins = 0;
    cJSON_ArrayForEach(bin, bins) {
        int64_t i = data->validation_bins++;
        if (i == DSVI_VALIDATION_BINS_MAX)
            return dsvi_lines_refuse(lines, "more than %d bins", DSVI_VALIDATION_BINS_MAX);
        DSVI_TRY(dsvi_lines_number(lines, bin, "sigma", &data->bin_sigma[i]));
        DSVI_TRY(dsvi_lines_number(lines, bin, "loss", &data->bin_loss[i]));
    }
    return DSV_OK;
}

static DsvStatus read_lines(DsviReportData *data, const char *name, bool needed,
                            DsvStatus (*take)(DsviReportData *data, const DsviReportLines *lines))
{
    char path[DSVI_PATH_MAX];
    DsviReportLines lines;
    bool there, got = true;
    DSVI_TRY(dsvi_path_join(path, data->folder, name));
    DsvStatus status = dsvi_lines_open(path, &lines, &there);
    if (status == DSV_OK && needed && !there)
        status = DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no %s there, so this is not a run's folder", data->folder,
                           name);
    while (status == DSV_OK && got) {
        status = dsvi_lines_next(&lines, &got);
        if (status == DSV_OK && got)
            status = take(data, &lines);
    }
    if (lines.unfinished) {
        size_t used = strlen(data->unfinished);
        snprintf(data->unfinished + used, sizeof data->unfinished - used, "%s%s", used ? ", " : "", name);
    }
    dsvi_lines_close(&lines);
    return status;
}

static DsvStatus find_frames(DsviReportData *data)
{
    const DsviReportTable *blocks = &data->blocks;
    data->frame = calloc((size_t)blocks->rows + 1, sizeof *data->frame);
    if (!data->frame)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld measurements", (long long)blocks->rows);
    for (int64_t r = 0; r < blocks->rows; r++)
        if (r == 0 ||
            dsvi_report_cell(blocks, r, DSVI_BLOCK_STEP) != dsvi_report_cell(blocks, r - 1, DSVI_BLOCK_STEP))
            data->frame[data->frames++] = r;
    data->frame[data->frames] = blocks->rows;
    return DSV_OK;
}

static void copy_json_text(const cJSON *object, const char *name, char *out, size_t room)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    snprintf(out, room, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

static double json_number(const cJSON *item)
{
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : NAN;
}

static void take_facts(DsviReportData *data, const cJSON *object)
{
    const struct {
        const char *name;
        double *value;
    } number[] = {
        {"parameters", &data->parameters},
        {"blocks", &data->model_blocks},
        {"heads", &data->model_heads},
        {"head_dim", &data->head_dim},
        {"tokens", &data->tokens},
        {"clips", &data->clips},
        {"memory_planned_bytes", &data->planned_bytes},
    };
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(object, "memory_bytes"), *item;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        *number[i].value = json_number(cJSON_GetObjectItemCaseSensitive(object, number[i].name));
    copy_json_text(object, "device", data->device, sizeof data->device);
    copy_json_text(object, "dsv", data->version, sizeof data->version);
    cJSON_ArrayForEach(item, memory) {
        if (data->memory_classes == DSVI_MEMORY_MAX || !item->string || !(json_number(item) > 0))
            continue;
        int64_t i = data->memory_classes++;
        snprintf(data->memory[i].name, sizeof data->memory[i].name, "%s", item->string);
        data->memory[i].bytes = item->valuedouble;
    }
}

/* Reads run.json, which runs of older versions lack. */
static DsvStatus read_facts(DsviReportData *data)
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    DSVI_TRY(dsvi_path_join(path, data->folder, "run.json"));
    take_facts(data, NULL);
    if (!dsvi_path_exists(path))
        return DSV_OK;
    DSVI_TRY(dsvi_file_read(path, FACTS_BYTES_MAX, &text, &bytes));
    cJSON *object = cJSON_ParseWithOpts(text, NULL, 1);
    DsvStatus status = cJSON_IsObject(object) ? DSV_OK
                                              : DSVI_FAIL(DSV_E_FORMAT, "%s: not a JSON object", path);
    if (status == DSV_OK)
        take_facts(data, object);
    cJSON_Delete(object);
    free(text);
    return status;
}

/* Reads config.yaml. Another version of dsv may have written unknown keys: the page then shows the error in
 * place of the configuration. */
static DsvStatus read_config(DsviReportData *data)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, data->folder, "config.yaml"));
    dsv_config_defaults(&data->config);
    data->has_config = dsv_config_load(&data->config, path) == DSV_OK;
    if (!data->has_config)
        snprintf(data->config_problem, sizeof data->config_problem, "%s", dsv_error_message());
    return DSV_OK;
}

DsvStatus dsvi_report_read(const char *folder, DsviReportData **out)
{
    DsvStatus status;
    DsviReportData *data = calloc(1, sizeof *data);
    *out = NULL;
    if (!data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its metrics", folder);
    data->folder = folder;
    data->steps.columns = DSVI_STEP_COLUMNS;
    data->blocks.columns = DSVI_BLOCK_HEADS;
    data->validation.columns = DSVI_VALIDATION_COLUMNS;
    DSVI_TRY_GOTO(status, read_lines(data, "metrics.jsonl", true, take_step_line), fail);
    DSVI_TRY_GOTO(status, read_lines(data, "blocks.jsonl", false, take_block_line), fail);
    DSVI_TRY_GOTO(status, read_lines(data, "decisions.jsonl", false, take_decision_line), fail);
    DSVI_TRY_GOTO(status, read_lines(data, "validation.jsonl", false, take_validation_line), fail);
    DSVI_TRY_GOTO(status, find_frames(data), fail);
    DSVI_TRY_GOTO(status, read_facts(data), fail);
    DSVI_TRY_GOTO(status, read_config(data), fail);
    *out = data;
    return DSV_OK;
fail:
    dsvi_report_data_free(&data);
    return status;
}

void dsvi_report_data_free(DsviReportData **data)
{
    DsviReportData *d = *data;
    if (!d)
        return;
    for (int i = 0; i < DSVI_DECISIONS_MAX; i++)
        free(d->decision[i].reason);
    free(d->steps.cell);
    free(d->blocks.cell);
    free(d->validation.cell);
    free(d->frame);
    free(d);
    *data = NULL;
}

int64_t dsvi_report_block_row(const DsviReportData *data, int64_t f, int64_t block)
{
    for (int64_t r = data->frame[f]; r < data->frame[f + 1]; r++)
        if (dsvi_report_cell(&data->blocks, r, DSVI_BLOCK) == (double)block)
            return r;
    return -1;
}

double dsvi_report_mean(const DsviReportTable *table, int64_t column, int64_t first, int64_t last)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t r = first < 0 ? 0 : first; r < last && r < table->rows; r++) {
        double value = dsvi_report_cell(table, r, column);
        if (isnan(value))
            continue;
        sum += value;
        count++;
    }
    return count > 0 ? sum / (double)count : NAN;
}
