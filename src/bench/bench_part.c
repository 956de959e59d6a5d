/* dsv_bench_part (include/dsv/bench.h): times a part of a published model alone, the VAE or the text encoder,
 * on random inputs. */
#include <stdlib.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/host.h"
#include "base/memory_limit.h"
#include "base/rng.h"
#include "base/threads.h"
#include "bench/bench_report.h"
#include "model/dit/dit.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"

enum { PART_REPEATS = 3, PART_REPEATS_MAX = 64, COLOURS = 3, FIRST_ID = 4, FIGURES_MAX = 8 };
#define MIB 1048576.0

typedef struct PartBench {
    const DsvBenchPart *options;
    const DsvConfig *settings;
    DsviBackend backend;
    int64_t repeats;
    DsviBenchFigure figures[FIGURES_MAX];
    size_t count;
} PartBench;

static void part_figure(PartBench *b, const char *name, double value)
{
    DSVI_ASSERT(b->count < FIGURES_MAX);
    b->figures[b->count++] = (DsviBenchFigure){name, value};
}

/* One pass of a part. The context is that of part_time(). */
typedef DsvStatus PartPass(void *context);

/* Returns in *seconds the median time of a pass, after one pass that is not timed. A pass ends when its
 * results are in host memory. */
static DsvStatus part_time(const PartBench *b, PartPass *pass, void *context, double *seconds)
{
    double taken[PART_REPEATS_MAX];
    DSVI_TRY(pass(context));
    for (int64_t i = 0; i < b->repeats; i++) {
        double begin = dsvi_clock_seconds();
        DSVI_TRY(pass(context));
        taken[i] = dsvi_clock_seconds() - begin;
    }
    *seconds = dsvi_median(taken, (size_t)b->repeats);
    return DSV_OK;
}

/* ---- VAE ---- */

typedef struct VaeJob {
    DsviVae *vae;
    bool decode;
    int64_t frames, height, width;
    float *video, *latents; /* latents: (2 z_dim, T', H', W'), room for the moments */
} VaeJob;

static DsvStatus vae_job_pass(void *context)
{
    VaeJob *j = context;
    return j->decode ? dsvi_vae_decode(j->vae, j->frames, j->height, j->width, j->latents, j->video)
                     : dsvi_vae_encode(j->vae, j->frames, j->height, j->width, j->video, j->latents);
}

static DsvStatus vae_job_allocate(VaeJob *j)
{
    int64_t temporal, spatial;
    const DsviVaeConfig *config = dsvi_vae_config(j->vae);
    const DsviRng rng = {.seed = 1};
    DSVI_TRY(dsvi_vae_check_size(config, j->frames, j->height, j->width));
    dsvi_vae_factors(config, &temporal, &spatial);
    int64_t pixels = COLOURS * j->frames * j->height * j->width;
    int64_t elements = 2 * config->z_dim * (1 + (j->frames - 1) / temporal) * (j->height / spatial) *
                       (j->width / spatial);
    j->video = malloc((size_t)pixels * sizeof *j->video);
    j->latents = malloc((size_t)elements * sizeof *j->latents);
    if (!j->video || !j->latents)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a video of %lld x %lld x %lld", (long long)j->frames,
                         (long long)j->height, (long long)j->width);
    dsvi_rng_fill_normal(rng, 0, j->latents, elements);
    dsvi_rng_fill_normal(rng, (uint64_t)elements, j->video, pixels);
    return DSV_OK;
}

/* Times one half of the VAE, loaded alone. */
static DsvStatus bench_vae_half(PartBench *b, bool decode)
{
    DsvStatus status;
    uint64_t bytes;
    double seconds;
    const DsvConfig *s = b->settings;
    VaeJob job = {.decode = decode, .frames = s->num_frames, .height = s->height, .width = s->width};
    const DsviVaeOptions options = {
        .act = dsvi_dit_act(s), .encode = !decode, .decode = decode, .memory_bytes = dsvi_memory_limit(s)};
    DSVI_TRY(dsvi_vae_open(&b->backend, b->options->path, &options, &job.vae));
    DSVI_TRY_GOTO(status, vae_job_allocate(&job), done);
    DSVI_TRY_GOTO(status, dsvi_vae_plan(job.vae, decode, job.frames, job.height, job.width, &bytes), done);
    DSVI_TRY_GOTO(status, part_time(b, vae_job_pass, &job, &seconds), done);
    part_figure(b, decode ? "decode_ms" : "encode_ms", 1e3 * seconds);
    part_figure(b, decode ? "decode_mib" : "encode_mib", (double)bytes / MIB);
done:
    dsvi_vae_close(&job.vae);
    free(job.video);
    free(job.latents);
    return status;
}

static DsvStatus bench_vae(PartBench *b)
{
    part_figure(b, "frames", (double)b->settings->num_frames);
    part_figure(b, "height", (double)b->settings->height);
    part_figure(b, "width", (double)b->settings->width);
    DSVI_TRY(bench_vae_half(b, false));
    return bench_vae_half(b, true);
}

/* ---- text encoder ---- */

typedef struct TextJobTimed {
    DsviUmt5 *encoder;
    int64_t prompts, *lengths;
    int32_t *ids;
    float *hidden;
} TextJobTimed;

static DsvStatus text_job_pass(void *context)
{
    TextJobTimed *j = context;
    return dsvi_umt5_encode(j->encoder, j->prompts, j->lengths, j->ids, j->hidden);
}

static DsvStatus text_job_allocate(TextJobTimed *j, int64_t rows)
{
    const DsviUmt5Config *config = dsvi_umt5_config(j->encoder);
    const DsviRng rng = {.seed = 2};
    int64_t total = j->prompts * rows;
    j->lengths = malloc((size_t)j->prompts * sizeof *j->lengths);
    j->ids = malloc((size_t)total * sizeof *j->ids);
    j->hidden = malloc((size_t)(total * config->d_model) * sizeof *j->hidden);
    if (!j->lengths || !j->ids || !j->hidden)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the states of %lld rows", (long long)total);
    for (int64_t i = 0; i < j->prompts; i++)
        j->lengths[i] = rows;
    for (int64_t i = 0; i < total; i++)
        j->ids[i] = (int32_t)(FIRST_ID + (int64_t)(dsvi_rng_uniform(rng, (uint64_t)i) *
                                                   (double)(config->vocab_size - FIRST_ID)));
    return DSV_OK;
}

static DsvStatus bench_text(PartBench *b)
{
    DsvStatus status;
    double seconds;
    TextJobTimed job = {.prompts = b->options->prompts};
    const DsviUmt5Options options = {.act = dsvi_dit_act(b->settings),
                                     .rows = job.prompts * b->options->rows,
                                     .memory_bytes = dsvi_memory_limit(b->settings)};
    DSVI_TRY(dsvi_umt5_open(&b->backend, b->options->path, &options, &job.encoder));
    DSVI_TRY_GOTO(status, text_job_allocate(&job, b->options->rows), done);
    DSVI_TRY_GOTO(status, part_time(b, text_job_pass, &job, &seconds), done);
    part_figure(b, "rows", (double)b->options->rows);
    part_figure(b, "prompts", (double)job.prompts);
    part_figure(b, "text_ms", 1e3 * seconds);
    part_figure(b, "prompt_ms", 1e3 * seconds / (double)job.prompts);
    part_figure(b, "text_mib", (double)dsvi_umt5_bytes(job.encoder) / MIB);
done:
    dsvi_umt5_close(&job.encoder);
    free(job.lengths);
    free(job.ids);
    free(job.hidden);
    return status;
}

/* ---- both ---- */

static DsvStatus part_check(PartBench *b)
{
    const DsvBenchPart *o = b->options;
    b->repeats = o->repeats ? o->repeats : PART_REPEATS;
    if (b->repeats < 1 || b->repeats > PART_REPEATS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "repeats %lld, expected 1 to %d", (long long)o->repeats,
                         PART_REPEATS_MAX);
    if (o->rows < 1 || o->rows > 1 << 16)
        return DSVI_FAIL(DSV_E_USAGE, "rows %lld, expected 1 to %d", (long long)o->rows, 1 << 16);
    if (o->prompts < 1 || o->prompts > 1 << 10)
        return DSVI_FAIL(DSV_E_USAGE, "prompts %lld, expected 1 to %d", (long long)o->prompts, 1 << 10);
    return DSV_OK;
}

DsvStatus dsv_bench_part(const DsvBenchPart *options, const DsvConfig *config, const char *json_path,
                         DsvLine *line, void *context)
{
    DsvStatus status;
    PartBench b = {.options = options, .settings = config};
    DSVI_TRY(dsvi_config_check_abi(config));
    DSVI_TRY(part_check(&b));
    bool vae = dsvi_vae_is(options->path);
    if (!vae && !dsvi_umt5_is(options->path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no VAE and no text encoder of a published model",
                         options->path);
    DSVI_TRY_GOTO(status, dsvi_backend_open(config, &b.backend), done);
    DSVI_TRY_GOTO(status, vae ? bench_vae(&b) : bench_text(&b), done);
    const DsviBenchLabel labels[] = {
        {"device", b.backend.device->name},
        {"part", vae ? "VAE" : "text encoder"},
        {"dtype", dsvi_dtype_name(dsvi_dit_act(config))},
    };
    part_figure(&b, "threads", (double)dsvi_threads_count());
    DSVI_TRY_GOTO(status,
                  dsvi_bench_report(labels, sizeof labels / sizeof *labels, b.figures, b.count, json_path,
                                    line, context),
                  done);
done:
    dsvi_backend_close(&b.backend);
    return status;
}
