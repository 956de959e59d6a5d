/* dsv_bench_step: the time of a whole training step, of one rank or several, and what kinds of work it goes
 * to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/backend.h"
#include "api/bench_report.h"
#include "api/densities.h"
#include "api/ops_timed.h"
#include "api/ranks.h"
#include "base/rng.h"
#include "base/threads.h"
#include "train/step.h"

enum { WARM_UP = 2, REPEATS = 7, REPEATS_LEAST = 3, REPEATS_MOST = 64, MARKED = 2 };
#define SECONDS 15.0 /* of measuring, after which the least number of repeats is enough */

typedef struct RandomLatents {
    DsvRng rng;
    int64_t elements;
    const float *drawn; /* once: a benchmark of steps is none of random numbers */
} RandomLatents;

static DsvStatus next_random(void *context, float *latent, int64_t *passed_over)
{
    RandomLatents *r = context;
    (void)passed_over;
    if (!r->drawn)
        dsvi_rng_fill_normal(r->rng, 0, latent, r->elements);
    else if (r->drawn != latent)
        memcpy(latent, r->drawn, (size_t)r->elements * sizeof *latent);
    r->drawn = latent;
    return DSV_OK;
}

/* Times of the measured steps, seconds. Those of kinds come from steps of their own, as marks take time. */
typedef struct Times {
    double step[REPEATS_MOST], forward[REPEATS_MOST], backward[REPEATS_MOST], optimizer[REPEATS_MOST];
    double total;                 /* of the steps */
    size_t repeats;
    double spent[DSV_KIND_COUNT]; /* sums over the marked steps */
    double timed, marked;         /* all kinds; the marked steps */
    size_t marked_steps;
    double profile, refresh;      /* shares of steps that do more, in every step */
} Times;

static double seconds_of(const DsvStepResult *result)
{
    return result->forward_s + result->backward_s + result->optimizer_s;
}

/* Something that is done every so many steps; share: what it takes, in each step. */
typedef struct Extra {
    int64_t every;
    double *share;
} Extra;

/* What steps take more than the others that do `extra`, and not `other`, if that can be; where they cannot
 * but do both, what is known of the other is taken off. */
static DsvStatus measure_extra(DsvTrainer *t, const DsvSampleSource *source, Times *times,
                               const Extra *extra, const Extra *other)
{
    DsvStepResult result;
    int64_t every = extra->every, step = (t->step / every + 1) * every;
    if (step % other->every == 0 && every % other->every != 0)
        step += every;
    t->step = step - 1;
    DSVI_TRY(dsvi_train_step(t, source, &result));
    double more = seconds_of(&result) - dsvi_median(times->step, times->repeats);
    if (step % other->every == 0)
        more -= *other->share * (double)other->every;
    *extra->share = fmax(0, more) / (double)every;
    return DSV_OK;
}

/* The rarer of the two last: it may be that it never comes without the other. */
static DsvStatus measure_extras(DsvTrainer *t, const DsvSampleSource *source, Times *times)
{
    const Extra profile = {t->settings->sparse_profile_every, &times->profile};
    const Extra refresh = {t->settings->sparse_refresh_every, &times->refresh};
    bool profile_first = profile.every <= refresh.every;
    const Extra *first = profile_first ? &profile : &refresh, *last = profile_first ? &refresh : &profile;
    DSVI_TRY(measure_extra(t, source, times, first, last));
    return measure_extra(t, source, times, last, first);
}

/* repeats 0: as many as there is time for. */
static bool goes_on(int64_t repeats, int64_t done, double seconds)
{
    if (repeats > 0)
        return done < repeats;
    return done < REPEATS_LEAST || (done < REPEATS && seconds < SECONDS);
}

/* What the ops of a step take. */
static DsvStatus measure_ops(DsvTrainer *t, const DsvSampleSource *source, Times *times)
{
    DsvStepResult result;
    double spent[DSV_KIND_COUNT];
    dsvi_ops_time_pause(false);
    dsvi_ops_time_reset();
    dsvi_ops_time_waits(true);
    DSVI_TRY(dsvi_train_step(t, source, &result));
    dsvi_ops_time_waits(false);
    dsvi_ops_time_pause(true);
    DSVI_TRY(dsvi_ops_time_spent(spent));
    for (int kind = 0; kind < DSV_KIND_COUNT; kind++)
        times->spent[kind] += spent[kind];
    times->marked += seconds_of(&result);
    times->marked_steps++;
    return DSV_OK;
}

static DsvStatus measure(DsvTrainer *t, int64_t repeats, Times *times)
{
    RandomLatents random = {{(uint64_t)t->settings->seed, DSV_RNG_TEST, 0}, t->elements, NULL};
    DsvSampleSource source = {&random, next_random};
    DsvStepResult result;
    dsvi_ops_time_pause(true);
    for (int64_t i = repeats == 1 ? -1 : -WARM_UP; goes_on(repeats, i, times->total); i++) {
        DSVI_TRY(dsvi_train_step(t, &source, &result));
        if (i < 0)
            continue;
        times->forward[i] = result.forward_s;
        times->backward[i] = result.backward_s;
        times->optimizer[i] = result.optimizer_s;
        times->step[i] = seconds_of(&result);
        times->total += times->step[i];
        DSVI_TRY(dsvi_comm_broadcast(t->comm, 0, &times->total, sizeof times->total)); /* all stop alike */
        times->repeats = (size_t)i + 1;
    }
    for (int i = 0; i < (repeats == 1 ? 1 : MARKED); i++)
        DSVI_TRY(measure_ops(t, &source, times));
    return t->settings->sparse_enabled && repeats != 1 ? measure_extras(t, &source, times) : DSV_OK;
}

static DsvStatus report(const DsvTrainer *t, Times *times, const char *json_path, DsvLine *line,
                        void *context)
{
    const DsvConfig *settings = t->settings;
    DsvDitShape shape = {
        .batch = settings->train_batch_size, .frames = t->latent.frames, .height = t->latent.height,
        .width = t->latent.width, .text_len = t->config.text_len,
    };
    DsvSparseShape sparse = dsvi_dit_sparse_shape(&t->config, &shape);
    double step = dsvi_median(times->step, times->repeats) + times->profile + times->refresh;
    for (int kind = 0; kind < DSV_KIND_COUNT; kind++)
        times->timed += times->spent[kind];
    /* Backward costs twice the forward pass; recomputation is not counted as work of the model. */
    double passes = (double)(t->mesh.data_ranks * settings->gradient_accumulation_steps);
    double flops = 3.0 * passes * (dsvi_dit_flops_gemm(&t->config, &shape) +
                                   dsvi_dit_flops_attention(&t->config, &shape));
    DsvSparseReport state;
    dsvi_sparse_report(t->sparse, &state);
    double tokens = (double)(sparse.tokens * shape.batch) * passes;
    /* What keeps the device from computing: waits for other ranks, and packing what they are sent. */
    double exposed = times->spent[DSV_KIND_WAIT] + times->spent[DSV_KIND_TRANSFER];
    const DsvBenchFigure figures[] = {
        {"step_ms", 1e3 * step},
        {"forward_ms", 1e3 * dsvi_median(times->forward, times->repeats)},
        {"backward_ms", 1e3 * dsvi_median(times->backward, times->repeats)},
        {"optimizer_ms", 1e3 * dsvi_median(times->optimizer, times->repeats)},
        {"profile_ms", 1e3 * times->profile}, /* shares, in step_ms */
        {"refresh_ms", 1e3 * times->refresh},
        {"parameters", (double)t->table.parameters},
        {"tokens", tokens},
        {"tokens_per_s", tokens / step},
        {"model_tflops", 1e-12 * flops / step / (double)dsvi_comm_size(t->comm)},
        {"planned_mib", (double)t->arena.used / 1048576},
        {"memory_mib", (double)t->backend->device->memory_used(t->backend->device) / 1048576},
        {"gemm_share", times->spent[DSV_KIND_GEMM] / times->marked},
        {"attention_share",
         (times->spent[DSV_KIND_ATTENTION_FWD] + times->spent[DSV_KIND_ATTENTION_BWD]) / times->marked},
        {"select_share", times->spent[DSV_KIND_SELECT] / times->marked},
        {"elementwise_share", times->spent[DSV_KIND_ELEMENTWISE] / times->marked},
        {"optimizer_share", times->spent[DSV_KIND_OPTIMIZER] / times->marked},
        {"transfer_share", times->spent[DSV_KIND_TRANSFER] / times->marked},
        {"wait_share", times->spent[DSV_KIND_WAIT] / times->marked},
        {"rest_share", 1 - times->timed / times->marked}, /* clearing, copies, the host */
        {"exposed_ms", 1e3 * exposed / (double)times->marked_steps},
        {"exposed_share", exposed / times->marked},
        {"density", state.density},
        {"sparse_blocks", (double)state.sparse_blocks},
        {"threads", (double)dsvi_threads_count()},
        {"ranks", (double)dsvi_comm_size(t->comm)},
    };
    const DsvBenchLabel labels[] = {
        {"device", t->backend->device->name}, {"gemm", t->backend->ops.gemm.variant},
        {"attention", t->backend->ops.attention_fwd.variant},
        {"attention_list", t->backend->ops.attention_list_fwd.variant},
        {"select", t->backend->ops.select_lists.variant},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, figures,
                             sizeof figures / sizeof *figures, json_path, line, context);
}

/* Lists by a threshold have now more, now fewer keys than they aim at. */
#define ROOM_TO_SPARE 1.1

/* Densities of lists (blocks, heads), or NULL: as the guard decides. Where heads of a block differ they are
 * counted, as one threshold serves all heads. Settings give them as much room as they take. */
static DsvStatus read_densities(const char *densities, const DsvDitConfig *model, DsvConfig *settings,
                                double **out)
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
    double mean = 0, most = 0;
    for (int64_t i = 0; i < blocks * heads; i++) {
        even = even && (isnan(density[i]) || density[i] == density[i / heads * heads]);
        mean += isnan(density[i]) ? 0 : density[i] / (double)(blocks * heads);
        most = fmax(most, density[i]);
    }
    settings->sparse_target_density = mean > 0 ? mean : 1;
    settings->sparse_list_memory = fmin(1, fmax(settings->sparse_list_memory, ROOM_TO_SPARE * mean));
    settings->sparse_max_density = fmin(1, fmax(settings->sparse_max_density, ROOM_TO_SPARE * most));
    return even ? DSV_OK : dsv_config_set(settings, "sparse.rule=topk");
}

/* That blocks attended over their lists in the last step. */
static DsvStatus check_lists(const DsvTrainer *t)
{
    DsvSparseBlockReport block;
    for (int64_t i = 0; i < t->config.num_layers; i++) {
        dsvi_sparse_block_report(t->sparse, i, &block);
        if (block.sparse && !block.over_lists)
            return DSVI_FAIL(DSV_E_USAGE, "block %lld ran dense: its lists found no room, sparse.list_memory "
                             "is %g", (long long)i, t->settings->sparse_list_memory);
    }
    return DSV_OK;
}

static DsvStatus run(DsvTrainer *t, const double *density, int64_t repeats, const char *json_path,
                     DsvLine *line, void *context)
{
    Times times = {0};
    if (density)
        dsvi_sparse_prescribe(t->sparse, density);
    if (dsvi_comm_rank(t->comm) == 0)
        dsvi_weights_init(&t->table, (uint64_t)t->settings->seed, t->host_flat);
    DSVI_TRY(dsvi_trainer_start(t));
    DSVI_TRY(measure(t, repeats, &times));
    if (density)
        DSVI_TRY(check_lists(t));
    return dsvi_comm_rank(t->comm) == 0 ? report(t, &times, json_path, line, context) : DSV_OK;
}

static DsvStatus check(const DsvBenchStep *wanted, const DsvConfig *settings)
{
    if (wanted->repeats < 0 || wanted->repeats > REPEATS_MOST)
        return DSVI_FAIL(DSV_E_USAGE, "%lld repeats, wanted at most %d", (long long)wanted->repeats,
                         REPEATS_MOST);
    if (settings->sparse_time_choices)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.time_choices is true, wanted false: what it measures goes to a "
                         "run's log");
    if (wanted->densities && !settings->sparse_enabled)
        return DSVI_FAIL(DSV_E_USAGE, "densities of lists, and sparse.enabled is false");
    return DSV_OK;
}

static DsvStatus bench(const DsvBenchStep *wanted, DsvConfig *settings, DsvComm *comm, const char *json_path,
                       DsvLine *line, void *context)
{
    DsvStatus status;
    DsvBackend backend = {0};
    DsvCodec *codec = NULL;
    DsvTrainer *trainer = NULL;
    double *density = NULL;
    DsvDitConfig config;
    DsvVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    DSVI_TRY_GOTO(status, check(wanted, settings), done);
    DSVI_TRY_GOTO(status, dsvi_codec_open(settings, &codec), done);
    DSVI_TRY_GOTO(status, codec->latent_shape(codec, video, &latent), done);
    DSVI_TRY_GOTO(status, dsvi_dit_config_make(settings, &config), done);
    config.in_channels = config.out_channels = latent.channels;
    DSVI_TRY_GOTO(status, read_densities(wanted->densities, &config, settings, &density), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open_rank(settings, comm, &backend), done);
    dsvi_ops_time(&backend);
    DSVI_TRY_GOTO(status, dsvi_trainer_create(settings, &backend, comm, codec, &config, NULL, NULL, &trainer),
                  done);
    DSVI_TRY_GOTO(status, run(trainer, density, wanted->repeats, json_path, line, context), done);
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

DsvStatus dsv_bench_step(DsvRanks *ranks, const DsvBenchStep *wanted, const DsvConfig *given,
                         const char *json_path, DsvLine *line, void *context)
{
    DsvConfig settings = *given;
    return bench(wanted, &settings, ranks ? ranks->comm : NULL, json_path, line, context);
}
