/* Implements metrics.h: writes and repairs JSON lines files of a run. */
#include "run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/number_text.h"

struct DsviMetrics {
    char *path;
    FILE *file; /* NULL: the file does not exist yet */
    off_t keep; /* size in bytes of the lines that a resumed run keeps */
    int64_t last_step;
};

static DsvStatus io_error(const DsviMetrics *m, const char *what)
{
    const char *reason = errno == ELOOP ? "it is a link" : strerror(errno);
    return DSVI_FAIL(DSV_E_IO, "%s: cannot be %s: %s", m->path, what, reason);
}

/* Reads "step" of a line. Returns false if the line is not a JSON object with an integer step. */
static bool read_step(const char *line, int64_t *step)
{
    cJSON *object = cJSON_Parse(line);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "step");
    bool found = cJSON_IsNumber(item) && dsvi_number_to_whole(item->valuedouble, step);
    cJSON_Delete(object);
    return found;
}

/* Sets m->keep to the end of the lines of steps up to resume_step. Unreadable lines after this end, for
 * example left by a power failure, will be cut. An unreadable line followed by a line of these steps is
 * an error. */
static DsvStatus measure_lines(DsviMetrics *m, int64_t resume_step)
{
    DsvStatus status = DSV_OK;
    char *line = NULL;
    size_t capacity = 0;
    int64_t step;
    off_t end = 0;
    ssize_t length;
    long unreadable = 0;
    for (long number = 1; (length = getline(&line, &capacity, m->file)) > 0; number++) {
        end += length;
        if (line[length - 1] != '\n')
            break; /* unfinished line */
        if (!read_step(line, &step)) {
            unreadable = unreadable ? unreadable : number;
            continue;
        }
        if (step > resume_step)
            break;
        if (unreadable) {
            status = DSVI_FAIL(DSV_E_FORMAT, "%s:%ld: no JSON object with a step", m->path, unreadable);
            break;
        }
        m->keep = end;
        m->last_step = step;
    }
    free(line);
    return status == DSV_OK && ferror(m->file) ? io_error(m, "read") : status;
}

/* Opens the file with additional open flags. Refuses symbolic links, which may lead to a file outside the
 * run. */
static DsvStatus metrics_open_file(DsviMetrics *m, int flags)
{
    struct stat about;
    int file = open(m->path, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    if (file < 0)
        return io_error(m, "written");
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(file);
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be written: it is not a regular file", m->path);
    }
    m->file = fdopen(file, "a+");
    if (m->file)
        return DSV_OK;
    close(file);
    return io_error(m, "written");
}

static DsvStatus metrics_read_file(DsviMetrics *m, int64_t resume_step)
{
    struct stat about;
    if (lstat(m->path, &about) != 0 && errno == ENOENT)
        return DSV_OK;
    DSVI_TRY(metrics_open_file(m, 0));
    rewind(m->file);
    return measure_lines(m, resume_step);
}

DsvStatus dsvi_metrics_open(const char *path, int64_t resume_step, DsviMetrics **out)
{
    DsvStatus status;
    DsviMetrics *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m)
        m->path = strdup(path);
    if (!m || !m->path) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, metrics_read_file(m, resume_step), fail);
    *out = m;
    return DSV_OK;
fail:
    dsvi_metrics_close(&m);
    return status;
}

static const char *metrics_name_of(const DsviMetrics *m)
{
    const char *slash = strrchr(m->path, '/');
    return slash ? slash + 1 : m->path;
}

/* Cuts the file to m->keep bytes. The part to be cut off is first copied to superseded/ and written to
 * disk. */
DsvStatus dsvi_metrics_begin(DsviMetrics *m, DsviSuperseded *superseded)
{
    char copy[DSVI_PATH_MAX];
    struct stat about;
    if (!m->file)
        return metrics_open_file(m, O_CREAT | O_EXCL);
    if (fstat(fileno(m->file), &about) != 0)
        return io_error(m, "read");
    if (about.st_size > m->keep) {
        DSVI_TRY(dsvi_superseded_place(superseded, metrics_name_of(m), copy));
        DSVI_TRY(dsvi_file_copy_from(fileno(m->file), (uint64_t)m->keep, copy));
    }
    if (ftruncate(fileno(m->file), m->keep) != 0 || fseeko(m->file, m->keep, SEEK_SET) != 0)
        return io_error(m, "cut to what is resumed");
    return DSV_OK;
}

void dsvi_metrics_close(DsviMetrics **metrics)
{
    DsviMetrics *m = *metrics;
    if (!m)
        return;
    if (m->file)
        fclose(m->file); /* cannot lose data: every line was flushed when it was written */
    free(m->path);
    free(m);
    *metrics = NULL;
}

int64_t dsvi_metrics_last_step(const DsviMetrics *m)
{
    return m->last_step;
}

DsvStatus dsvi_metrics_sync(DsviMetrics *m)
{
    return m->file && fsync(fileno(m->file)) != 0 ? io_error(m, "synced") : DSV_OK;
}

bool dsvi_metrics_in_place(const DsviMetrics *m)
{
    return !m->file || dsvi_path_is_open_as(m->path, fileno(m->file));
}

DsvStatus dsvi_metrics_restore(DsviMetrics *m, DsviSuperseded *superseded)
{
    if (dsvi_metrics_in_place(m))
        return DSV_OK;
    if (dsvi_path_exists(m->path))
        DSVI_TRY(dsvi_superseded_move(superseded, metrics_name_of(m), metrics_name_of(m)));
    return dsvi_file_copy_from(fileno(m->file), 0, m->path);
}

/* Begins a line with its step, the first key of every line. */
static void begin_line(DsviMetrics *m, int64_t step)
{
    m->last_step = step;
    fprintf(m->file, "{\"step\": %" PRId64, step);
}

static void metrics_put_number(DsviMetrics *m, const char *name, double value)
{
    char text[DSVI_NUMBER_BYTES];
    dsvi_number_text(value, text);
    fprintf(m->file, ", \"%s\": %s", name, text);
}

static void put_numbers(DsviMetrics *m, const char *name, int64_t count, const float *values)
{
    char text[DSVI_NUMBER_BYTES];
    fprintf(m->file, ", \"%s\": [", name);
    for (int64_t i = 0; i < count; i++) {
        dsvi_number_text(values[i], text);
        fprintf(m->file, "%s%s", i ? ", " : "", text);
    }
    fputc(']', m->file);
}

/* Writes a JSON string. Bytes that are not ASCII (UTF-8) are written unchanged. */
static void put_text(DsviMetrics *m, const char *text)
{
    fputc('"', m->file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c < 0x20)
            fprintf(m->file, "\\u%04x", *c);
        else
            fprintf(m->file, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
    }
    fputc('"', m->file);
}

static DsvStatus end_line(DsviMetrics *m)
{
    fputs("}\n", m->file);
    return fflush(m->file) != 0 || ferror(m->file) ? io_error(m, "written") : DSV_OK;
}

DsvStatus dsvi_metrics_step(DsviMetrics *m, const DsviMetricsStep *line)
{
    begin_line(m, line->step);
    metrics_put_number(m, "loss", line->loss);
    metrics_put_number(m, "grad_norm", line->grad_norm);
    metrics_put_number(m, "lr", line->lr);
    put_numbers(m, "loss_bins", DSVI_SIGMA_BINS, line->loss_bins);
    metrics_put_number(m, "step_ms", line->step_ms);
    metrics_put_number(m, "tokens_per_s", line->tokens_per_s);
    metrics_put_number(m, "density", line->density);
    fprintf(m->file, ", \"sparse_blocks\": %" PRId64, line->sparse_blocks);
    metrics_put_number(m, "captured_mass", line->captured_mass);
    metrics_put_number(m, "output_error", line->output_error);
    metrics_put_number(m, "predictor_loss", line->predictor_loss);
    metrics_put_number(m, "data_wait_ms", line->data_wait_ms);
    metrics_put_number(m, "forward_ms", line->forward_ms);
    metrics_put_number(m, "backward_ms", line->backward_ms);
    metrics_put_number(m, "optimizer_ms", line->optimizer_ms);
    fprintf(m->file, ", \"memory_bytes\": %" PRIu64, line->memory_bytes);
    return end_line(m);
}

DsvStatus dsvi_metrics_block(DsviMetrics *m, int64_t step, int64_t block, int64_t heads,
                             const DsviSparseBlockReport *report)
{
    begin_line(m, step);
    fprintf(m->file, ", \"block\": %" PRId64 ", \"sparse\": %s", block, report->sparse ? "true" : "false");
    metrics_put_number(m, "density", report->density);
    metrics_put_number(m, "captured_mass", report->captured_mass);
    metrics_put_number(m, "output_error", report->output_error);
    metrics_put_number(m, "estimated_mass", report->estimated_mass);
    metrics_put_number(m, "share90", report->share90);
    put_numbers(m, "head_captured", heads, report->head_captured);
    put_numbers(m, "head_error", heads, report->head_error);
    put_numbers(m, "head_share90", heads, report->head_share90);
    return end_line(m);
}

DsvStatus dsvi_metrics_held_out(DsviMetrics *m, int64_t step, const DsviHeldOutLoss *loss)
{
    char sigma[DSVI_NUMBER_BYTES], mean[DSVI_NUMBER_BYTES];
    begin_line(m, step);
    metrics_put_number(m, "loss", loss->loss);
    fputs(", \"bins\": [", m->file);
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++) {
        dsvi_number_text(loss->bin_sigma[bin], sigma);
        dsvi_number_text(loss->bin_loss[bin], mean);
        fprintf(m->file, "%s{\"sigma\": %s, \"loss\": %s}", bin ? ", " : "", sigma, mean);
    }
    fputc(']', m->file);
    metrics_put_number(m, "dense_loss", loss->dense_loss);
    return end_line(m);
}

DsvStatus dsvi_metrics_decision(DsviMetrics *m, int64_t step, const char *reason)
{
    begin_line(m, step);
    fputs(", \"reason\": ", m->file);
    put_text(m, reason);
    return end_line(m);
}
