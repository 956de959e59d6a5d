/* Whole runs of a tiny model on artificial clips, and comparison of two runs. */
#ifndef DSVI_TEST_RUN_RIG_H
#define DSVI_TEST_RUN_RIG_H

#include <cjson/cJSON.h>

#include "dsv/dsv.h"
#include "tiny.h"

enum { STEPS = 10 };

static char clips[DSVI_PATH_MAX];
static const char *device = "cpu";

/* Requests a stop after this many calls: dsv_train asks once before each step. */
typedef struct Stopper {
    int64_t steps;
    const char *folder; /* folder of the run, for callbacks that change it */
    char log[8192];
} Stopper;

static inline bool stop_after(void *context)
{
    return ((Stopper *)context)->steps-- <= 0;
}

static inline void keep_log(void *context, DsvLogLevel level, const char *line)
{
    Stopper *s = (Stopper *)context;
    size_t used = strlen(s->log);
    (void)level;
    snprintf(s->log + used, sizeof s->log - used, "%s\n", line);
}

static inline void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

static inline void run_settings(DsvConfig *settings, const char *folder)
{
    tiny_settings(settings);
    set(settings, "data.path", clips);
    set(settings, "output_dir", folder);
    set(settings, "max_train_steps", "10");
    set(settings, "device", device);
    set(settings, "deterministic", "true");
}

/* Compares the metrics that depend on the options only. */
static const char *const FIXED_METRICS[] = {"step",      "loss",    "grad_norm",     "lr",
                                            "loss_bins", "density", "sparse_blocks", "captured_mass"};

static inline FILE *open_metrics(const char *folder)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

static inline cJSON *next_line(FILE *file)
{
    char *text = NULL;
    size_t room = 0;
    cJSON *object = getline(&text, &room, file) > 0 ? cJSON_Parse(text) : NULL;
    free(text);
    return object;
}

/* Both runs have the same guard decisions after the same steps, and at least one. */
static inline void same_decisions(const char *folder_a, const char *folder_b)
{
    char path[DSVI_PATH_MAX];
    uint64_t bytes;
    snprintf(path, sizeof path, "%s/decisions.jsonl", folder_a);
    assert_ok(dsvi_file_size(path, &bytes));
    assert_true(bytes > 0);
    same_file(folder_a, folder_b, "decisions.jsonl");
}

static inline void same_metrics(const char *folder_a, const char *folder_b)
{
    FILE *a = open_metrics(folder_a), *b = open_metrics(folder_b);
    for (int line = 0; line < STEPS; line++) {
        cJSON *x = next_line(a), *y = next_line(b);
        assert_non_null(x);
        assert_non_null(y);
        for (size_t i = 0; i < sizeof FIXED_METRICS / sizeof *FIXED_METRICS; i++) {
            const cJSON *p = cJSON_GetObjectItem(x, FIXED_METRICS[i]);
            const cJSON *q = cJSON_GetObjectItem(y, FIXED_METRICS[i]);
            assert_non_null(p);
            assert_non_null(q);
            if (!cJSON_Compare(p, q, 1) || (cJSON_IsNumber(p) && p->valuedouble != q->valuedouble))
                fail_msg("step %d: %s differs: %.17g, %.17g", line + 1, FIXED_METRICS[i], p->valuedouble,
                         q->valuedouble);
        }
        cJSON_Delete(x);
        cJSON_Delete(y);
    }
    same_decisions(folder_a, folder_b);
    assert_null(next_line(a));
    assert_null(next_line(b));
    fclose(a);
    fclose(b);
}

/* Compares two runs and removes their folders. */
static inline void same_runs(const char *folder_a, const char *folder_b)
{
    same_metrics(folder_a, folder_b);
    tiny_same_checkpoints(folder_a, folder_b, STEPS);
    assert_ok(dsvi_folder_remove(folder_a));
    assert_ok(dsvi_folder_remove(folder_b));
}

static inline void train_straight(DsvConfig *settings, const char *folder, DsvTrainSummary *summary)
{
    run_settings(settings, folder);
    assert_ok(dsv_train(settings, NULL, summary));
    assert_int_equal(summary->last_step, STEPS);
    assert_true(isfinite(summary->last_loss));
}

/* Set-up and tear-down functions for a group of cmocka tests. */
static inline int make_clips(void **state)
{
    (void)state;
    snprintf(clips, sizeof clips, "%s", tiny_folder());
    tiny_clips(clips, 3);
    return 0;
}

static inline int remove_clips(void **state)
{
    (void)state;
    return dsvi_folder_remove(clips) == DSV_OK ? 0 : 1;
}

#endif
