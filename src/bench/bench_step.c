/* dsv_bench_step (include/dsv/bench.h): times whole training steps on one or several ranks, and how much of
 * the time each kind of operation takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "backend/backend.h"
#include "bench/bench_report.h"
#include "plan/densities.h"
#include "bench/ops_timed.h"
#include "dist/ranks.h"
#include "base/rng.h"
#include "base/threads.h"
#include "train/step.h"

enum { WARM_UP = 2, REPEATS = 7, REPEATS_LEAST = 3, REPEATS_MAX = 64 };
enum { MARKED = 2 }; /* number of additional steps in which each operation is timed by marks on the stream */
#define SECONDS 15.0 /* after so many seconds, REPEATS_LEAST repetitions are enough */

/* A source of training samples with random latents. */
typedef struct RandomLatents {
    DsviRng rng;
    int64_t elements;
    const float *drawn; /* the first latent; later ones are copies, because drawing takes time */
} RandomLatents;

static DsvStatus bench_step_next_sample(void *context, DsviSample *sample)
{
    RandomLatents *r = context;
    float *latent = sample->latent;
    if (!r->drawn)
        dsvi_rng_fill_normal(r->rng, 0, latent, r->elements);
    else if (r->drawn != latent)
        memcpy(latent, r->drawn, (size_t)r->elements * sizeof *latent);
    r->drawn = latent;
    return DSV_OK;
}

/* Seconds of the measured steps. Times of each kind of operation come from separate steps, because
 * recording timing marks takes time. */
typedef struct Times {
    double step[REPEATS_MAX], forward[REPEATS_MAX], backward[REPEATS_MAX], optimizer[REPEATS_MAX];
    double total; /* sum of `step`, the seconds of the measured steps */
    size_t repeats;
    double spent[DSVI_KIND_COUNT]; /* seconds of each kind of operation, summed over the steps with timing
                                    * marks */
    double timed, marked; /* timed: sum of `spent`; marked: total time of the steps with timing marks */
    size_t marked_steps;
    /* seconds per step for measuring captured mass, and for renewing the selector's projection: the cost of
     * one measurement (or renewal) divided by the number of steps from one to the next */
    double profile, refresh;
} Times;

static double step_seconds(const DsviStepResult *result)
{
    return result->forward_s + result->backward_s + result->optimizer_s;
}

/* Additional work that every `every`-th training step does for sparse attention. */
typedef struct Extra {
    int64_t every;
    double *per_step; /* seconds, divided by `every` */
} Extra;

/* Measures how much longer a step with `extra` takes than other steps. If possible, the timed step has
 * `extra` but not the second kind of additional work, `other`. If every step with `extra` also has `other`,
 * the known time of `other` is subtracted. */
static DsvStatus measure_extra(DsviTrainer *t, const DsviSampleSource *source, Times *times,
                               const Extra *extra, const Extra *other)
{
    DsviStepResult result;
    int64_t every = extra->every, step = (t->step / every + 1) * every;
    if (step % other->every == 0 && every % other->every != 0)
        step += every;
    t->step = step - 1;
    DSVI_TRY(dsvi_train_step(t, source, &result));
    double more = step_seconds(&result) - dsvi_median(times->step, times->repeats);
    if (step % other->every == 0)
        more -= *other->per_step * (double)other->every;
    *extra->per_step = fmax(0, more) / (double)every;
    return DSV_OK;
}

/* Measures both kinds of additional work: measuring captured mass (profile), and renewing the selector's
 * projection (refresh). The rarer kind is measured last, because its steps may always have the other kind,
 * too. */
static DsvStatus measure_extras(DsviTrainer *t, const DsviSampleSource *source, Times *times)
{
    const Extra profile = {t->settings->sparse_profile_every, &times->profile};
    const Extra refresh = {t->settings->sparse_refresh_every, &times->refresh};
    bool profile_first = profile.every <= refresh.every;
    const Extra *first = profile_first ? &profile : &refresh, *last = profile_first ? &refresh : &profile;
    DSVI_TRY(measure_extra(t, source, times, first, last));
    return measure_extra(t, source, times, last, first);
}

/* Returns whether another repetition is needed. If `repeats` is 0, there are as many repetitions as fit into
 * SECONDS. */
static bool needs_repeat(int64_t repeats, int64_t done, double seconds)
{
    if (repeats > 0)
        return done < repeats;
    return done < REPEATS_LEAST || (done < REPEATS && seconds < SECONDS);
}

/* Runs a training step with timing marks and adds the seconds of its operations to times->spent. */
static DsvStatus measure_ops(DsviTrainer *t, const DsviSampleSource *source, Times *times)
{
    DsviStepResult result;
    double spent[DSVI_KIND_COUNT];
    dsvi_ops_time_pause(false);
    dsvi_ops_time_reset();
    dsvi_ops_time_waits(true);
    DSVI_TRY(dsvi_train_step(t, source, &result));
    dsvi_ops_time_waits(false);
    dsvi_ops_time_pause(true);
    DSVI_TRY(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSVI_KIND_COUNT; kind++)
        times->spent[kind] += spent[kind];
    times->marked += step_seconds(&result);
    times->marked_steps++;
    return DSV_OK;
}

static DsvStatus bench_step_measure(DsviTrainer *t, int64_t repeats, Times *times)
{
    RandomLatents random = {{(uint64_t)t->settings->seed, DSVI_RNG_TEST, 0}, t->elements, NULL};
    DsviSampleSource source = {.context = &random, .next = bench_step_next_sample};
    DsviStepResult result;
    dsvi_ops_time_pause(true);
    for (int64_t i = repeats == 1 ? -1 : -WARM_UP; needs_repeat(repeats, i, times->total); i++) {
        DSVI_TRY(dsvi_train_step(t, &source, &result));
        if (i < 0)
            continue;
        times->forward[i] = result.forward_s;
        times->backward[i] = result.backward_s;
        times->optimizer[i] = result.optimizer_s;
        times->step[i] = step_seconds(&result);
        times->total += times->step[i];
        /* All ranks must stop after the same repetition. */
        DSVI_TRY(dsvi_comm_broadcast(t->comm, 0, &times->total, sizeof times->total));
        times->repeats = (size_t)i + 1;
    }
    for (int i = 0; i < (repeats == 1 ? 1 : MARKED); i++)
        DSVI_TRY(measure_ops(t, &source, times));
    return t->settings->sparse_enabled && repeats != 1 ? measure_extras(t, &source, times) : DSV_OK;
}

static DsvStatus bench_step_report(const DsviTrainer *t, Times *times, const char *json_path, DsvLine *line,
                                   void *context)
{
    const DsvConfig *settings = t->settings;
    DsviDitShape shape = dsvi_dit_shape_of(&t->config, settings->train_batch_size, t->latent);
    DsviSparseShape sparse = dsvi_dit_sparse_shape(&t->config, &shape);
    double step = dsvi_median(times->step, times->repeats) + times->profile + times->refresh;
    for (int kind = 0; kind < DSVI_KIND_COUNT; kind++)
        times->timed += times->spent[kind];
    double passes = (double)(t->mesh.data_ranks * settings->gradient_accumulation_steps);
    double flops = passes * dsvi_dit_flops_step(&t->config, &shape, t->frozen != NULL, 1);
    DsviSparseReport state;
    dsvi_sparse_report(t->sparse, &state);
    double tokens = (double)(sparse.tokens * shape.batch) * passes;
    /* Time in which the device does not compute: waiting for other ranks, and packing messages. */
    double exposed = times->spent[DSVI_KIND_WAIT] + times->spent[DSVI_KIND_TRANSFER];
    const DsviBenchFigure figures[] = {
        {"step_ms", 1e3 * step},
        {"forward_ms", 1e3 * dsvi_median(times->forward, times->repeats)},
        {"backward_ms", 1e3 * dsvi_median(times->backward, times->repeats)},
        {"optimizer_ms", 1e3 * dsvi_median(times->optimizer, times->repeats)},
        {"profile_ms", 1e3 * times->profile}, /* included in step_ms */
        {"refresh_ms", 1e3 * times->refresh},
        {"parameters", (double)t->table.parameters},
        {"tokens", tokens},
        {"tokens_per_s", tokens / step},
        {"model_tflops", 1e-12 * flops / step / (double)dsvi_comm_size(t->comm)},
        {"planned_mib", (double)t->arena.used / 1048576},
        {"memory_mib", (double)t->backend->device->memory_used(t->backend->device) / 1048576},
        {"gemm_share", times->spent[DSVI_KIND_GEMM] / times->marked},
        {"attention_share",
         (times->spent[DSVI_KIND_ATTENTION_FWD] + times->spent[DSVI_KIND_ATTENTION_BWD]) / times->marked},
        {"select_share", times->spent[DSVI_KIND_SELECT] / times->marked},
        {"elementwise_share", times->spent[DSVI_KIND_ELEMENTWISE] / times->marked},
        {"optimizer_share", times->spent[DSVI_KIND_OPTIMIZER] / times->marked},
        {"transfer_share", times->spent[DSVI_KIND_TRANSFER] / times->marked},
        {"wait_share", times->spent[DSVI_KIND_WAIT] / times->marked},
        {"rest_share", 1 - times->timed / times->marked}, /* fraction of time outside of operations: clearing
                                                           * memory, copies, host work */
        {"exposed_ms", 1e3 * exposed / (double)times->marked_steps},
        {"exposed_share", exposed / times->marked},
        {"density", state.density},
        {"sparse_blocks", (double)state.sparse_blocks},
        {"threads", (double)dsvi_threads_count()},
        {"ranks", (double)dsvi_comm_size(t->comm)},
    };
    const DsviBenchLabel labels[] = {
        {"device", t->backend->device->name},
        {"gemm", t->backend->ops.gemm.variant},
        {"attention", t->backend->ops.attention_fwd.variant},
        {"attention_list", t->backend->ops.attention_list_fwd.variant},
        {"select", t->backend->ops.select_lists.variant},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, figures,
                             sizeof figures / sizeof *figures, json_path, line, context);
}

/* If a threshold chooses the keys, the density of lists varies around its target. The option for list memory
 * and the maximum density are therefore at least the prescribed density times DENSITY_MARGIN. */
#define DENSITY_MARGIN 1.1

/* Reads prescribed densities of lists, (blocks, heads), into *out, which the caller frees; *out is NULL if
 * `densities` is NULL: then the run itself decides which blocks are sparse. Sets the options for list memory
 * accordingly. If heads of a block differ, selects sparse.rule=topk, because a threshold is common to all
 * heads. */
static DsvStatus bench_step_read_densities(const char *densities, const DsviDitConfig *model,
                                           DsvConfig *settings, double **out)
{
    int64_t blocks = model->num_layers, heads = model->num_attention_heads;
    bool even = true;
    *out = NULL;
    if (!densities)
        return DSV_OK;
    double *density = *out = malloc((size_t)(blocks * heads) * sizeof *density);
    if (!density)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the densities of %lld blocks", (long long)blocks);
    DSVI_TRY(dsvi_densities_read(densities, blocks, heads, density));
    double mean = 0, max = 0;
    for (int64_t i = 0; i < blocks * heads; i++) {
        even = even && (isnan(density[i]) || density[i] == density[i / heads * heads]);
        mean += isnan(density[i]) ? 0 : density[i] / (double)(blocks * heads);
        max = fmax(max, density[i]);
    }
    settings->sparse_target_density = mean > 0 ? mean : 1;
    settings->sparse_min_keys = 0;
    settings->sparse_list_memory = fmin(1, fmax(settings->sparse_list_memory, DENSITY_MARGIN * mean));
    settings->sparse_max_density = fmin(1, fmax(settings->sparse_max_density, DENSITY_MARGIN * max));
    return even ? DSV_OK : dsv_config_set(settings, "sparse.rule=topk");
}

/* Fails if a sparse block attended densely in the last step. */
static DsvStatus bench_step_check_lists(const DsviTrainer *t)
{
    DsviSparseBlockReport block;
    for (int64_t i = 0; i < t->config.num_layers; i++) {
        dsvi_sparse_block_report(t->sparse, i, &block);
        if (block.sparse && !block.over_lists)
            return DSVI_FAIL(DSV_E_USAGE,
                             "block %lld ran dense: its lists did not fit, sparse.list_memory "
                             "is %g",
                             (long long)i, t->settings->sparse_list_memory);
    }
    return DSV_OK;
}

static DsvStatus bench_step_run(DsviTrainer *t, const double *density, int64_t repeats, const char *json_path,
                                DsvLine *line, void *context)
{
    Times times = {0};
    if (density)
        dsvi_sparse_prescribe(t->sparse, density);
    DSVI_TRY(dsvi_trainer_start_new(t, (uint64_t)t->settings->seed));
    DSVI_TRY(bench_step_measure(t, repeats, &times));
    if (density)
        DSVI_TRY(bench_step_check_lists(t));
    return dsvi_comm_rank(t->comm) == 0 ? bench_step_report(t, &times, json_path, line, context) : DSV_OK;
}

static DsvStatus bench_step_check(const DsvBenchStep *options, const DsvConfig *settings)
{
    if (options->repeats < 0 || options->repeats > REPEATS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%lld repeats, expected at most %d", (long long)options->repeats,
                         REPEATS_MAX);
    if (settings->sparse_time_choices)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.time_choices is true, expected false: what it measures goes to a "
                         "run's log");
    if (options->densities && !settings->sparse_enabled)
        return DSVI_FAIL(DSV_E_USAGE, "densities of lists, and sparse.enabled is false");
    return DSV_OK;
}

static DsvStatus bench_step_open(const DsvBenchStep *options, DsvConfig *settings, DsviComm *comm,
                                 const char *json_path, DsvLine *line, void *context)
{
    DsvStatus status;
    DsviBackend backend = {0};
    DsviCodec *codec = NULL;
    DsviTrainer *trainer = NULL;
    double *density = NULL;
    DsviDitConfig config;
    DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    DSVI_TRY_GOTO(status, bench_step_check(options, settings), done);
    DSVI_TRY_GOTO(status, dsvi_codec_open(settings, &codec), done);
    DSVI_TRY_GOTO(status, codec->latent_shape(codec, video, &latent), done);
    DSVI_TRY_GOTO(status, dsvi_dit_config_make(settings, &config), done);
    config.in_channels = config.out_channels = latent.channels;
    DSVI_TRY_GOTO(status, bench_step_read_densities(options->densities, &config, settings, &density), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open_rank(settings, comm, &backend), done);
    dsvi_ops_time_enable(&backend);
    DSVI_TRY_GOTO(status,
                  dsvi_trainer_create(&(DsviTrainerArgs){.settings = settings,
                                                         .backend = &backend,
                                                         .comm = comm,
                                                         .codec = codec,
                                                         .config = &config},
                                      &trainer),
                  done);
    DSVI_TRY_GOTO(status, bench_step_run(trainer, density, options->repeats, json_path, line, context), done);
done:
    dsvi_ops_time_waits(false);
    if (status != DSV_OK)
        status = dsvi_comm_fail(comm, status);
    dsvi_trainer_free(&trainer);
    if (codec)
        codec->close(codec);
    dsvi_backend_close(&backend);
    free(density);
    return status;
}

DsvStatus dsv_bench_step(DsvRanks *ranks, const DsvBenchStep *options, const DsvConfig *given,
                         const char *json_path, DsvLine *line, void *context)
{
    DSVI_TRY(dsvi_config_check_abi(given));
    DsvConfig settings = *given;
    return bench_step_open(options, &settings, ranks ? ranks->comm : NULL, json_path, line, context);
}
