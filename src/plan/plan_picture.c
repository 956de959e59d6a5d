/* Writes the result of dsv_plan as a table and as JSON. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "plan/plan_parts.h"
#include "base/fs.h"

enum { TEXT_BYTES = 1024 };

static const char *const NAIVE_NAME[DSVI_NAIVES] = {"heads_in_order", "tokens", "tokens_all_keys"};

typedef struct Picture {
    const DsviPlanned *p;
    DsvLine *line;
    void *context;
} Picture;

DSVI_PRINTF(2, 3)
static void plan_picture_print(const Picture *to, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    to->line(to->context, text);
}

/* Returns the smallest density among the heads of a block, and sets *max to the largest. */
static double density_range(const double *density, int64_t heads, double *max)
{
    double min = density[0];
    *max = density[0];
    for (int64_t h = 1; h < heads; h++) {
        min = fmin(min, density[h]);
        *max = fmax(*max, density[h]);
    }
    return min;
}

/* Writes the densities of a block's key lists to `text`: "dense", "0.10" or a range such as "0.02-0.18". */
static void density_text(const DsviPlanned *p, const DsviPlannedBlock *block, char *text, size_t text_bytes)
{
    double max, min;
    snprintf(text, text_bytes, "dense");
    if (!block->known.density)
        return;
    min = density_range(block->density, p->model.heads, &max);
    if (max - min < 0.005)
        snprintf(text, text_bytes, "%.2f", max);
    else
        snprintf(text, text_bytes, "%.2f-%.2f", min, max);
}

/* Writes the time `seconds` of a plan in milliseconds to `text`, or a dash if the plan is impossible. */
static void ms_text(double seconds, char *text, size_t text_bytes)
{
    if (isfinite(seconds))
        snprintf(text, text_bytes, "%.2f", 1e3 * seconds);
    else
        snprintf(text, text_bytes, "-");
}

static void row_text(const DsviPlanned *p, const DsviPlannedBlock *block, char *row)
{
    char density[32], heads[256], naive[DSVI_NAIVES][24];
    const DsviCpTimes *t = &block->choice.times;
    density_text(p, block, density, sizeof density);
    dsvi_cp_heads_text(&block->choice.plan, heads, sizeof heads);
    for (int i = 0; i < DSVI_NAIVES; i++)
        ms_text(block->naive[i], naive[i], sizeof naive[i]);
    snprintf(row, TEXT_BYTES, "%-10s %4lld x %-4lld %9.2f %9.2f %9.2f %9.2f   %9s %9s %9s   %s", density,
             (long long)block->choice.plan.head_ranks, (long long)block->choice.plan.sequence_ranks,
             1e3 * t->total, 1e3 * t->attend, 1e3 * t->heads, 1e3 * t->sequence, naive[DSVI_NAIVE_HEADS],
             naive[DSVI_NAIVE_TOKENS], naive[DSVI_NAIVE_ALL_KEYS], heads);
}

/* Writes one line of the table for consecutive transformer blocks that have the same plan and the same
 * figures. */
static void draw_blocks(const Picture *to)
{
    char row[TEXT_BYTES], next[TEXT_BYTES], name[32];
    const DsviPlanned *p = to->p;
    for (int64_t first = 0, last; first < p->model.blocks; first = last + 1) {
        row_text(p, &p->block[first], row);
        for (last = first; last + 1 < p->model.blocks; last++) {
            row_text(p, &p->block[last + 1], next);
            if (strcmp(row, next) != 0)
                break;
        }
        if (last > first)
            snprintf(name, sizeof name, "%lld-%lld", (long long)first, (long long)last);
        else
            snprintf(name, sizeof name, "%lld", (long long)first);
        plan_picture_print(to, "%-7s %s", name, row);
    }
}

static void draw_sums(const Picture *to)
{
    DsviCpTimes sum = {0};
    double naive[DSVI_NAIVES] = {0};
    char text[DSVI_NAIVES][24];
    const DsviPlanned *p = to->p;
    for (int64_t b = 0; b < p->model.blocks; b++) {
        const DsviCpTimes *t = &p->block[b].choice.times;
        sum.total += t->total;
        sum.attend += t->attend;
        sum.heads += t->heads;
        sum.sequence += t->sequence;
        for (int i = 0; i < DSVI_NAIVES; i++)
            naive[i] += p->block[b].naive[i];
    }
    for (int i = 0; i < DSVI_NAIVES; i++)
        ms_text(naive[i], text[i], sizeof text[i]);
    plan_picture_print(to, "%-7s %-10s %11s %9.2f %9.2f %9.2f %9.2f   %9s %9s %9s", "all", "", "",
                       1e3 * sum.total, 1e3 * sum.attend, 1e3 * sum.heads, 1e3 * sum.sequence,
                       text[DSVI_NAIVE_HEADS], text[DSVI_NAIVE_TOKENS], text[DSVI_NAIVE_ALL_KEYS]);
}

void dsvi_plan_draw(const DsviPlanned *p, DsvLine *line, void *context)
{
    const Picture to = {p, line, context};
    plan_picture_print(&to,
                       "%lld ranks share a clip of %lld tokens: %lld blocks, %lld heads of %lld, batch %lld",
                       (long long)p->shape.ranks, (long long)p->shape.tokens, (long long)p->model.blocks,
                       (long long)p->model.heads, (long long)p->model.head_dim, (long long)p->model.batch);
    plan_picture_print(&to, "costs: %s", p->costs.about);
    for (int64_t r = 0; r < p->shape.ranks; r++)
        plan_picture_print(&to, "rank %-3lld tokens %lld to %lld", (long long)r, (long long)p->bound[r],
                           (long long)p->bound[r + 1] - 1);
    plan_picture_print(&to, "%s", "");
    plan_picture_print(&to, "%-7s %-10s %-11s %-40s  %s", "", "", "", "ms a step, of the slowest rank",
                       "ms if all ranks divided");
    plan_picture_print(&to, "%-7s %-10s %-11s %9s %9s %9s %9s   %9s %9s %9s   %s", "block", "density",
                       "head x seq", "all", "attention", "for heads", "for keys", "heads", "tokens",
                       "all keys", "heads of each head rank");
    draw_blocks(&to);
    draw_sums(&to);
}

static bool add_ms(cJSON *object, const char *name, double seconds)
{
    return isfinite(seconds) ? cJSON_AddNumberToObject(object, name, 1e3 * seconds) != NULL
                             : cJSON_AddNullToObject(object, name) != NULL;
}

static bool add_times(cJSON *object, const DsviCpTimes *times)
{
    return add_ms(object, "ms", times->total) && add_ms(object, "attention_ms", times->attend) &&
           add_ms(object, "heads_ms", times->heads) && add_ms(object, "keys_ms", times->sequence) &&
           cJSON_AddNumberToObject(object, "memory_bytes", (double)times->memory);
}

/* Adds the heads of each head rank as an array of arrays. */
static bool add_heads(cJSON *object, const DsviCpPlan *plan)
{
    cJSON *ranks = cJSON_AddArrayToObject(object, "heads");
    bool whole = ranks != NULL;
    for (int64_t r = 0; r < plan->head_ranks && whole; r++) {
        cJSON *heads = cJSON_CreateIntArray(plan->placement + plan->bound[r],
                                            (int)(plan->bound[r + 1] - plan->bound[r]));
        whole = heads && cJSON_AddItemToArray(ranks, heads);
    }
    return whole;
}

static bool add_candidates(cJSON *object, const DsviCpChoice *choice)
{
    cJSON *all = cJSON_AddArrayToObject(object, "candidates");
    bool whole = all != NULL;
    for (int64_t i = 0; i < choice->candidates && whole; i++) {
        const DsviCpCandidate *candidate = &choice->candidate[i];
        cJSON *one = cJSON_CreateObject();
        whole = one && cJSON_AddItemToArray(all, one) &&
                cJSON_AddNumberToObject(one, "head_ranks", (double)candidate->head_ranks) &&
                cJSON_AddNumberToObject(one, "sequence_ranks", (double)candidate->sequence_ranks) &&
                add_times(one, &candidate->times);
    }
    return whole;
}

static bool add_density(cJSON *object, const DsviPlanned *p, const DsviPlannedBlock *block)
{
    if (!block->known.density)
        return cJSON_AddNullToObject(object, "density") != NULL;
    cJSON *array = cJSON_CreateDoubleArray(block->density, (int)p->model.heads);
    return array && cJSON_AddItemToObject(object, "density", array);
}

static bool plan_picture_add_block(cJSON *array, const DsviPlanned *p, int64_t number)
{
    const DsviPlannedBlock *block = &p->block[number];
    const DsviCpPlan *plan = &block->choice.plan;
    cJSON *object = cJSON_CreateObject();
    bool whole = object && cJSON_AddItemToArray(array, object) && add_density(object, p, block) &&
                 cJSON_AddNumberToObject(object, "head_ranks", (double)plan->head_ranks) &&
                 cJSON_AddNumberToObject(object, "sequence_ranks", (double)plan->sequence_ranks) &&
                 add_heads(object, plan) && add_times(object, &block->choice.times) &&
                 add_candidates(object, &block->choice);
    cJSON *naive = whole ? cJSON_AddObjectToObject(object, "naive_ms") : NULL;
    for (int i = 0; i < DSVI_NAIVES && naive; i++)
        whole = whole && add_ms(naive, NAIVE_NAME[i], block->naive[i]);
    return whole && naive;
}

static bool add_all(cJSON *object, const DsviPlanned *p)
{
    cJSON *bound = cJSON_AddArrayToObject(object, "token_bound");
    bool whole = bound && cJSON_AddStringToObject(object, "costs", p->costs.about) &&
                 cJSON_AddNumberToObject(object, "ranks", (double)p->shape.ranks);
    for (int64_t r = 0; r <= p->shape.ranks && whole; r++) {
        cJSON *number = cJSON_CreateNumber((double)p->bound[r]);
        whole = number && cJSON_AddItemToArray(bound, number);
    }
    cJSON *blocks = whole ? cJSON_AddArrayToObject(object, "blocks") : NULL;
    whole = blocks != NULL;
    for (int64_t b = 0; b < p->model.blocks && whole; b++)
        whole = plan_picture_add_block(blocks, p, b);
    return whole;
}

DsvStatus dsvi_plan_write(const DsviPlanned *p, const char *path)
{
    cJSON *object = cJSON_CreateObject();
    char *text = object && add_all(object, p) ? cJSON_Print(object) : NULL;
    DsvStatus status = text ? dsvi_file_replace(path, text, strlen(text))
                            : DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the plan", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}
