/* Measures the captured mass of key lists for many combinations of options, on a trained model and any
 * clips.
 *
 *     dsv_study MODEL CLIPS OUT [--parts a,b] [--order NAME] [--clips N] [--samples N] [--stored MODEL]...
 *         [key=value]...
 *
 * Each clip passes forward once at each noise level, with dense attention. In each block, every case of the
 * table below makes lists from the block's queries and keys, and the lists are compared with exact
 * attention. OUT.csv gets one line for each (case, target, clip, noise level, block). OUT.f32 has, in the
 * same order, the captured mass and then the density of each (head, sampled query) as 32-bit floats.
 * choices.py and mature.py make tables and plots from both files. Both are flushed after each block, so that
 * only the last block of an interrupted study can be incomplete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsv/sample.h"
#include "study_meter.h"
#include "study_pass.h"
#include "run/model_path.h"

enum { CASES_MAX = 512, STORED_MAX = 16 };

static const double densities[] = {0.05, 0.1, 0.2, 0};
static const double masses[] = {0.6, 0.7, 0.8, 0.9, 0.95, 0};
static const double curve[] = {0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 0};
static const double sigmas[] = {0.1, 0.5, 0.9};

static const char *const orders[] = {"hilbert", "raster", "hilbert3d", "tube", "cube"};

typedef struct Study {
    const char *model, *clips, *out, *parts;
    const char *order; /* token order of all cases that do not compare orders */
    const char *stored[STORED_MAX];
    int64_t stored_count, clips_max, samples;
    DsvConfig settings;
    StudyPass *pass;
    StudyMeter *meter;
    StudyCase cases[CASES_MAX];
    int64_t case_count;
    StudyCase whole; /* part "sparsity": exact attention without lists */
    int64_t clip;
    double sigma;
    FILE *csv, *values;
} Study;

/* ---- the table of cases ---- */

/* Queries per group in all cases that do not compare group sizes. Every chunk size below divides this
 * number. */
enum { GROUP = 128 };

/* Returns a case with the default options and groups of GROUP queries; callers change single fields. */
static StudyCase usual(const Study *s, const char *part, const char *selector)
{
    DsvConfig d;
    dsv_config_defaults(&d);
    return (StudyCase){
        .part = part,
        .selector = selector,
        .order = s->order,
        .group = GROUP,
        .chunk = d.sparse_chunk,
        .grain = d.sparse_grain,
        .rank = d.sparse_rank,
        .source = STUDY_OWN,
        .format = STUDY_F32,
        .rule = STUDY_COMMON,
        .targets = densities,
    };
}

static bool wanted(const Study *s, const char *part)
{
    size_t length = strlen(part);
    for (const char *at = s->parts; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, part, length) == 0 && (at[length] == ',' || at[length] == 0))
            return true;
    }
    return s->parts == NULL;
}

static void add(Study *s, StudyCase one)
{
    DSVI_ASSERT(s->case_count < CASES_MAX);
    if (wanted(s, one.part))
        s->cases[s->case_count++] = one;
}

static void add_with_rules(Study *s, StudyCase one)
{
    add(s, one);
    one.rule = STUDY_TOPK;
    add(s, one);
}

/* Two bounds. With one list per query and exact estimates no group size can capture more at equal length.
 * Lists of the nearest keys show what locality alone captures. */
static void add_bounds(Study *s)
{
    static const char *const windows[] = {"nearest", "column"};
    StudyCase query = usual(s, "bound", "mean");
    query.group = 1;
    add_with_rules(s, query);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        StudyCase window = usual(s, "bound", windows[i]);
        window.order = "raster";
        window.group = 1;
        window.rule = STUDY_TOPK;
        add(s, window);
    }
}

static void add_orders(Study *s)
{
    static const int64_t groups[] = {32, 64, 128, 256};
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            StudyCase mean = usual(s, "order-mean", "mean"), projection = usual(s, "order", "projection");
            mean.order = projection.order = orders[o];
            mean.group = projection.group = groups[g];
            add_with_rules(s, mean);
            add(s, projection);
        }
    }
}

/* A few cases, cheap enough for every checkpoint: exact group means, and the lists of two selectors. */
static void add_brief(Study *s)
{
    static const char *const of[] = {"hilbert", "tube"};
    for (size_t o = 0; o < sizeof of / sizeof *of; o++) {
        StudyCase mean = usual(s, "brief", "mean"), projection = usual(s, "brief", "projection");
        mean.order = projection.order = of[o];
        add(s, mean);
        add(s, projection);
    }
    StudyCase blocks = usual(s, "brief", "pooled");
    blocks.group = blocks.grain = 64;
    blocks.order = "cube";
    add(s, blocks);
}

static void add_stored(Study *s)
{
    for (int64_t i = 0; i < s->stored_count; i++) {
        DsviModelPath model;
        DsviSafetensors *file;
        StudyCase one = usual(s, "selector", "projection");
        if (dsvi_model_find(s->stored[i], &model) != DSV_OK ||
            dsvi_safetensors_open(model.sparse, &file) != DSV_OK)
            continue; /* skip a path without a readable sparse state */
        const char *selector = dsvi_safetensors_metadata(file, "selector");
        const char *rank = dsvi_safetensors_metadata(file, "rank");
        one.selector = selector && strcmp(selector, "predictor") == 0 ? "predictor" : "projection";
        one.rank = rank ? atoll(rank) : one.rank;
        dsvi_safetensors_close(&file);
        one.source = STUDY_STORED;
        one.stored = s->stored[i];
        add_with_rules(s, one);
        if (strcmp(one.selector, "predictor") != 0)
            continue;
        one.group = 64; /* the DSV paper's groups; below also one proxy per query */
        add_with_rules(s, one);
        one.chunk = 1;
        add_with_rules(s, one);
    }
}

static void add_selectors(Study *s)
{
    static const int64_t ranks[] = {4, 8, 16, 32, 64}, chunks[] = {128, 64, 32, 16, 8, 4};
    StudyCase one;
    add_with_rules(s, usual(s, "selector", "mean"));
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        one = usual(s, "selector", "projection");
        one.rank = ranks[i];
        if (one.rank <= study_pass_shape(s->pass)->head_dim)
            add_with_rules(s, one);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        one = usual(s, "chunk", "projection");
        one.chunk = chunks[i];
        add(s, one);
    }
    for (int format = STUDY_BF16; format < STUDY_FORMATS; format++) {
        one = usual(s, "selector", "projection");
        one.format = (StudyFormat)format;
        add(s, one);
    }
    one = usual(s, "selector", "projection");
    one.source = STUDY_FIRST;
    add(s, one);
    one = usual(s, "selector", "pooled");
    add_with_rules(s, one);
    one.group = one.grain = 64;
    add_with_rules(s, one);
    one.order = "cube";
    add_with_rules(s, one);
    add_stored(s);
}

static void add_rules(Study *s)
{
    for (int rule = 0; rule < STUDY_RULES; rule++) {
        StudyCase one = usual(s, "rule", "projection");
        one.rule = (StudyRule)rule;
        one.targets = one.rule == STUDY_MASS ? masses : one.rule == STUDY_COMMON ? curve : densities;
        add(s, one);
    }
}

static void add_grains(Study *s)
{
    static const char *const of[] = {"hilbert", "raster", "tube"};
    for (int64_t grain = 1; grain <= 64; grain *= 2) {
        for (size_t o = 0; o < sizeof of / sizeof *of; o++) {
            StudyCase projection = usual(s, "grain", "projection"), mean = usual(s, "grain-mean", "mean");
            projection.grain = mean.grain = grain;
            projection.order = mean.order = of[o];
            projection.targets = curve;
            add(s, projection);
            add(s, mean);
        }
    }
    StudyCase blocks = usual(s, "grain", "pooled");
    blocks.group = blocks.grain = 64;
    blocks.order = "cube";
    blocks.targets = curve;
    add_with_rules(s, blocks);
}

/* Cases of one order are adjacent, so that the meter uploads the tensors of a block once per order. */
static int by_order(const void *a, const void *b)
{
    const StudyCase *x = a, *y = b;
    int order = strcmp(x->order, y->order);
    return order ? order : (x->group > y->group) - (x->group < y->group);
}

static void make_table(Study *s)
{
    add_brief(s);
    add_bounds(s);
    add_orders(s);
    add_selectors(s);
    add_rules(s);
    add_grains(s);
    qsort(s->cases, (size_t)s->case_count, sizeof *s->cases, by_order);
    s->whole = usual(s, "sparsity", "none");
}

/* ---- output ---- */

static const char *source_name(const StudyCase *of)
{
    return of->source == STUDY_OWN ? "own" : of->source == STUDY_FIRST ? "first" : of->stored;
}

static DsvStatus write_result(void *context, const StudyResult *r)
{
    const Study *s = context;
    const StudyCase *of = r->of;
    const DsviSparseShape *shape = study_pass_shape(s->pass);
    size_t count = (size_t)(shape->heads * (s->samples < shape->tokens ? s->samples : shape->tokens));
    int printed = fprintf(s->csv, "%s,%s,%s,%lld,%lld,%lld,%lld,%s,%s,%s,%g,%s,%g,%lld,%.5f,%.5f\n", of->part,
                          of->selector, of->order, (long long)of->group, (long long)of->chunk,
                          (long long)of->grain, (long long)of->rank, source_name(of),
                          study_format_names[of->format], study_rule_names[of->rule], r->target,
                          study_pass_clip_name(s->pass, s->clip), s->sigma, (long long)r->block, r->density,
                          r->captured);
    if (printed < 0 || fwrite(r->captured_of, sizeof(float), count, s->values) != count ||
        fwrite(r->listed_of, sizeof(float), count, s->values) != count)
        return DSVI_FAIL(DSV_E_IO, "%s: results cannot be written", s->out);
    return DSV_OK;
}

static DsvStatus see_block(void *context, int64_t block, const DsviAttentionCall *args)
{
    Study *s = context;
    StudyResult whole;
    DSVI_TRY(study_meter_show(s->meter, block, args));
    DSVI_TRY(study_meter_share90(s->meter, &s->whole, &whole));
    DSVI_TRY(write_result(s, &whole));
    for (int64_t i = 0; i < s->case_count; i++)
        DSVI_TRY(study_meter_case(s->meter, &s->cases[i], write_result, s));
    return fflush(s->csv) || fflush(s->values) ? DSVI_FAIL(DSV_E_IO, "%s: results cannot be written", s->out)
                                               : DSV_OK;
}

static DsvStatus open_outputs(Study *s)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s.csv", s->out);
    s->csv = fopen(path, "w");
    snprintf(path, sizeof path, "%s.f32", s->out);
    s->values = fopen(path, "wb");
    if (!s->csv || !s->values)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be written", path);
    fputs("part,selector,order,group,chunk,grain,rank,source,format,rule,target,clip,sigma,block,density,"
          "captured\n",
          s->csv);
    return DSV_OK;
}

static DsvStatus close_outputs(Study *s)
{
    int failures = (s->csv ? fclose(s->csv) : 0) + (s->values ? fclose(s->values) : 0);
    s->csv = s->values = NULL;
    return failures ? DSVI_FAIL(DSV_E_IO, "%s: results cannot be written", s->out) : DSV_OK;
}

static DsvStatus run(Study *s)
{
    DSVI_TRY(study_pass_open(s->model, s->clips, &s->settings, &s->pass));
    DSVI_TRY(study_meter_open(study_pass_backend(s->pass), &s->settings, study_pass_shape(s->pass),
                              s->samples, &s->meter));
    make_table(s);
    DSVI_TRY(open_outputs(s));
    const DsviSparseShape *shape = study_pass_shape(s->pass);
    int64_t clips = study_pass_clips(s->pass);
    clips = s->clips_max > 0 && s->clips_max < clips ? s->clips_max : clips;
    fprintf(stderr, "%s: %lld blocks x %lld heads, head size %lld; %lld x %lld x %lld tokens; %lld cases\n",
            s->model, (long long)shape->blocks, (long long)shape->heads, (long long)shape->head_dim,
            (long long)shape->grid[0], (long long)shape->grid[1], (long long)shape->grid[2],
            (long long)s->case_count);
    for (s->clip = 0; s->clip < clips; s->clip++) {
        DSVI_TRY(study_pass_draw(s->pass, s->clip));
        for (size_t i = 0; i < sizeof sigmas / sizeof *sigmas; i++) {
            double loss;
            s->sigma = sigmas[i];
            DSVI_TRY(study_pass_run(s->pass, s->sigma, see_block, s, &loss));
            fprintf(stderr, "%s, noise level %.1f: loss %.4f\n", study_pass_clip_name(s->pass, s->clip),
                    s->sigma, loss);
        }
    }
    return close_outputs(s);
}

/* ---- the command line ---- */

static DsvStatus read_number(const char *text, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return *end || end == text || *out < 1 ? DSVI_FAIL(DSV_E_USAGE, "%s is not a number of 1 or more", text)
                                           : DSV_OK;
}

static DsvStatus read_arguments(Study *s, int count, char **argument)
{
    bool of_run;
    if (count < 4)
        return DSVI_FAIL(DSV_E_USAGE, "usage: dsv_study MODEL CLIPS OUT [--parts a,b] [--order NAME] "
                                      "[--clips N] [--samples N] [--stored MODEL]... [key=value]...");
    s->model = argument[1];
    s->clips = argument[2];
    s->out = argument[3];
    s->order = "hilbert";
    s->samples = 256;
    dsv_config_defaults(&s->settings);
    DSVI_TRY(dsv_config_of_run(s->model, &s->settings, &of_run));
    for (int i = 4; i < count; i++) {
        const char *word = argument[i], *value = i + 1 < count ? argument[i + 1] : "";
        if (strchr(word, '=')) {
            DSVI_TRY(dsv_config_set(&s->settings, word));
            continue;
        }
        i++;
        if (strcmp(word, "--parts") == 0)
            s->parts = value;
        else if (strcmp(word, "--order") == 0)
            s->order = value;
        else if (strcmp(word, "--clips") == 0)
            DSVI_TRY(read_number(value, &s->clips_max));
        else if (strcmp(word, "--samples") == 0)
            DSVI_TRY(read_number(value, &s->samples));
        else if (strcmp(word, "--stored") == 0 && s->stored_count < STORED_MAX)
            s->stored[s->stored_count++] = value;
        else
            return DSVI_FAIL(DSV_E_USAGE, "%s is unknown, or --stored was given more than %d times", word,
                             STORED_MAX);
    }
    return DSV_OK;
}

int main(int count, char **argument)
{
    Study *s = calloc(1, sizeof *s);
    if (!s)
        return EXIT_FAILURE;
    DsvStatus status = read_arguments(s, count, argument);
    if (status == DSV_OK)
        status = run(s);
    if (status != DSV_OK)
        fprintf(stderr, "dsv_study: %s\n", dsv_error_message());
    close_outputs(s);
    for (int64_t i = 0; i < s->case_count; i++)
        study_case_free(&s->cases[i]);
    study_meter_close(&s->meter);
    study_pass_close(&s->pass);
    free(s);
    return status == DSV_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
