/* See metrics.h. */
#include "train/metrics.h"

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

struct DsvMetrics {
    char *path;
    FILE *file;        /* NULL: there is none yet */
    off_t keep;        /* bytes of the lines that stay */
    int64_t last_step;
};

static DsvStatus io_error(const DsvMetrics *m, const char *what)
{
    const char *reason = errno == ELOOP ? "it is a link" : strerror(errno);
    return DSVI_FAIL(DSV_E_IO, "%s: cannot be %s: %s", m->path, what, reason);
}

/* The step of a line; false when it is no object with one. */
static bool read_step(const char *line, int64_t *step)
{
    cJSON *object = cJSON_Parse(line);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "step");
    bool found = cJSON_IsNumber(item) && dsvi_number_whole(item->valuedouble, step);
    cJSON_Delete(object);
    return found;
}

/* Finds where the lines of steps up to resume_step end. A power failure may leave bytes there that are no
 * lines: they are cut with the rest, as long as no such line comes after them. */
static DsvStatus measure_lines(DsvMetrics *m, int64_t resume_step)
{
    DsvStatus status = DSV_OK;
    char *line = NULL;
    size_t room = 0;
    int64_t step;
    off_t end = 0;
    ssize_t length;
    long unreadable = 0;
    for (long number = 1; (length = getline(&line, &room, m->file)) > 0; number++) {
        end += length;
        if (line[length - 1] != '\n')
            break; /* torn */
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

/* Opens the file with these flags in addition. A link is refused: it may lead to a file that is not the
 * run's. */
static DsvStatus open_file(DsvMetrics *m, int flags)
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

static DsvStatus read_file(DsvMetrics *m, int64_t resume_step)
{
    struct stat about;
    if (lstat(m->path, &about) != 0 && errno == ENOENT)
        return DSV_OK;
    DSVI_TRY(open_file(m, 0));
    rewind(m->file);
    return measure_lines(m, resume_step);
}

DsvStatus dsvi_metrics_open(const char *path, int64_t resume_step, DsvMetrics **out)
{
    DsvStatus status;
    DsvMetrics *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m)
        m->path = strdup(path);
    if (!m || !m->path) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", path);
        goto fail;
    }
    DSVI_TRY_GOTO(status, read_file(m, resume_step), fail);
    *out = m;
    return DSV_OK;
fail:
    dsvi_metrics_close(&m);
    return status;
}

static const char *name_of(const DsvMetrics *m)
{
    const char *slash = strrchr(m->path, '/');
    return slash ? slash + 1 : m->path;
}

/* The bytes that are cut must be on the disk at their new place before they go from here. */
DsvStatus dsvi_metrics_begin(DsvMetrics *m, DsvSuperseded *superseded)
{
    char copy[DSVI_PATH_MAX];
    struct stat about;
    if (!m->file)
        return open_file(m, O_CREAT | O_EXCL);
    if (fstat(fileno(m->file), &about) != 0)
        return io_error(m, "read");
    if (about.st_size > m->keep) {
        DSVI_TRY(dsvi_superseded_place(superseded, name_of(m), copy));
        DSVI_TRY(dsvi_file_copy_from(fileno(m->file), (uint64_t)m->keep, copy));
    }
    if (ftruncate(fileno(m->file), m->keep) != 0 || fseeko(m->file, m->keep, SEEK_SET) != 0)
        return io_error(m, "cut to what is resumed");
    return DSV_OK;
}

void dsvi_metrics_close(DsvMetrics **metrics)
{
    DsvMetrics *m = *metrics;
    if (!m)
        return;
    if (m->file)
        fclose(m->file); /* every line was flushed when it was written */
    free(m->path);
    free(m);
    *metrics = NULL;
}

int64_t dsvi_metrics_last_step(const DsvMetrics *m)
{
    return m->last_step;
}

DsvStatus dsvi_metrics_sync(DsvMetrics *m)
{
    return m->file && fsync(fileno(m->file)) != 0 ? io_error(m, "synced") : DSV_OK;
}

bool dsvi_metrics_in_place(const DsvMetrics *m)
{
    return !m->file || dsvi_path_is_open_as(m->path, fileno(m->file));
}

DsvStatus dsvi_metrics_restore(DsvMetrics *m, DsvSuperseded *superseded)
{
    if (dsvi_metrics_in_place(m))
        return DSV_OK;
    if (dsvi_path_exists(m->path))
        DSVI_TRY(dsvi_superseded_move(superseded, name_of(m), name_of(m)));
    return dsvi_file_copy_from(fileno(m->file), 0, m->path);
}

/* Every line begins with its step. */
static void begin_line(DsvMetrics *m, int64_t step)
{
    m->last_step = step;
    fprintf(m->file, "{\"step\": %" PRId64, step);
}

static void put_number(DsvMetrics *m, const char *name, double value)
{
    char text[DSVI_NUMBER_ROOM];
    dsvi_number_text(value, text);
    fprintf(m->file, ", \"%s\": %s", name, text);
}

static void put_numbers(DsvMetrics *m, const char *name, int64_t count, const float *values)
{
    char text[DSVI_NUMBER_ROOM];
    fprintf(m->file, ", \"%s\": [", name);
    for (int64_t i = 0; i < count; i++) {
        dsvi_number_text(values[i], text);
        fprintf(m->file, "%s%s", i ? ", " : "", text);
    }
    fputc(']', m->file);
}

/* A JSON string; of what is not ASCII the bytes as they are. */
static void put_text(DsvMetrics *m, const char *text)
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

static DsvStatus end_line(DsvMetrics *m)
{
    fputs("}\n", m->file);
    return fflush(m->file) != 0 || ferror(m->file) ? io_error(m, "written") : DSV_OK;
}

DsvStatus dsvi_metrics_step(DsvMetrics *m, const DsvMetricsStep *line)
{
    begin_line(m, line->step);
    put_number(m, "loss", line->loss);
    put_number(m, "grad_norm", line->grad_norm);
    put_number(m, "lr", line->lr);
    put_numbers(m, "loss_bins", DSV_SIGMA_BINS, line->loss_bins);
    put_number(m, "step_ms", line->step_ms);
    put_number(m, "tokens_per_s", line->tokens_per_s);
    put_number(m, "density", line->density);
    fprintf(m->file, ", \"sparse_blocks\": %" PRId64, line->sparse_blocks);
    put_number(m, "captured_mass", line->captured_mass);
    put_number(m, "predictor_loss", line->predictor_loss);
    put_number(m, "data_wait_ms", line->data_wait_ms);
    put_number(m, "forward_ms", line->forward_ms);
    put_number(m, "backward_ms", line->backward_ms);
    put_number(m, "optimizer_ms", line->optimizer_ms);
    fprintf(m->file, ", \"memory_bytes\": %" PRIu64, line->memory_bytes);
    return end_line(m);
}

DsvStatus dsvi_metrics_block(DsvMetrics *m, int64_t step, int64_t block, int64_t heads,
                             const DsvSparseBlockReport *report)
{
    begin_line(m, step);
    fprintf(m->file, ", \"block\": %" PRId64 ", \"sparse\": %s", block, report->sparse ? "true" : "false");
    put_number(m, "density", report->density);
    put_number(m, "captured_mass", report->captured_mass);
    put_number(m, "estimated_mass", report->estimated_mass);
    put_number(m, "share90", report->share90);
    put_numbers(m, "head_captured", heads, report->head_captured);
    put_numbers(m, "head_share90", heads, report->head_share90);
    return end_line(m);
}

DsvStatus dsvi_metrics_held_out(DsvMetrics *m, int64_t step, const DsvHeldOutLoss *loss)
{
    char sigma[DSVI_NUMBER_ROOM], mean[DSVI_NUMBER_ROOM];
    begin_line(m, step);
    put_number(m, "loss", loss->loss);
    fputs(", \"bins\": [", m->file);
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++) {
        dsvi_number_text(loss->bin_sigma[bin], sigma);
        dsvi_number_text(loss->bin_loss[bin], mean);
        fprintf(m->file, "%s{\"sigma\": %s, \"loss\": %s}", bin ? ", " : "", sigma, mean);
    }
    fputc(']', m->file);
    put_number(m, "dense_loss", loss->dense_loss);
    return end_line(m);
}

DsvStatus dsvi_metrics_decision(DsvMetrics *m, int64_t step, const char *reason)
{
    begin_line(m, step);
    fputs(", \"reason\": ", m->file);
    put_text(m, reason);
    return end_line(m);
}
