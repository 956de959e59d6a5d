/* Sections of the page about the run as a whole: its name, a summary, headline figures, the configuration. */
#include <math.h>
#include <string.h>

#include "base/config_value.h"
#include "report/report_page.h"
#include "report/report_text.h"

/* Numbers of first and last steps over which losses are averaged, as in DsvTrainSummary (dsv/train.h). */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

static double newest_value(const DsviReportData *data, DsviReportStep column)
{
    return data->steps.rows > 0 ? dsvi_report_cell(&data->steps, data->steps.rows - 1, column) : NAN;
}

static double newest_mean(const DsviReportData *data, DsviReportStep column)
{
    return dsvi_report_mean(&data->steps, column, data->steps.rows - LAST_STEPS, data->steps.rows);
}

DsvStatus dsvi_report_name(FILE *to, const DsviReportData *data)
{
    char name[DSVI_PATH_MAX];
    snprintf(name, sizeof name, "%s", data->folder);
    for (size_t length = strlen(name); length > 1 && name[length - 1] == '/'; length--)
        name[length - 1] = 0;
    const char *slash = strrchr(name, '/');
    dsvi_put_text(to, slash && slash[1] ? slash + 1 : name);
    return DSV_OK;
}

static void put_progress(FILE *to, const DsviReportData *data)
{
    double step = newest_value(data, DSVI_STEP), seconds = 0;
    for (int64_t r = 0; r < data->steps.rows; r++)
        seconds += fmax(dsvi_report_cell(&data->steps, r, DSVI_STEP_MS), 0) / 1000;
    fputs("<p>", to);
    if (isnan(step)) {
        fputs("No step is done yet.</p>\n", to);
        return;
    }
    bool over = data->has_config && step >= (double)data->config.max_train_steps;
    fputs(over ? "Finished after " : data->has_config ? "Not finished: at step " : "At step ", to);
    dsvi_put_count(to, step);
    if (data->has_config && !over) {
        fputs(" of ", to);
        dsvi_put_count(to, (double)data->config.max_train_steps);
    }
    fputs(!over ? ", after " : step == 1 ? " step, which took " : " steps, which took ", to);
    dsvi_put_duration(to, seconds);
    fputs(".</p>\n", to);
}

static void put_model(FILE *to, const DsviReportData *data)
{
    if (isnan(data->parameters))
        return;
    fputs(" of ", to);
    dsvi_put_large(to, data->parameters);
    fputs(" parameters (", to);
    dsvi_put_count(to, data->model_blocks);
    fputs(" blocks, ", to);
    dsvi_put_count(to, data->model_heads);
    fputs(" heads of ", to);
    dsvi_put_count(to, data->head_dim);
    fputc(')', to);
}

DsvStatus dsvi_report_sentence(FILE *to, const DsviReportData *data)
{
    const DsvConfig *config = &data->config;
    fputs("<p>A video diffusion transformer", to);
    put_model(to, data);
    if (data->has_config) {
        fputs(", trained on ", to);
        if (!isnan(data->clips)) {
            dsvi_put_count(to, data->clips);
            fputs(data->clips == 1 ? " clip, " : " clips, ", to);
        }
        fprintf(to, "%lld frames of %lld &times; %lld at a time", (long long)config->num_frames,
                (long long)config->width, (long long)config->height);
        if (!isnan(data->tokens)) {
            fputs(" (", to);
            dsvi_put_count(to, data->tokens);
            fputs(" tokens)", to);
        }
        fprintf(to, ", in batches of %lld, ",
                (long long)(config->train_batch_size * config->gradient_accumulation_steps));
        if (config->sparse_enabled) {
            fputs("with sparse attention (selector ", to);
            dsvi_put_text(to, config->sparse_selector);
            fputc(')', to);
        } else {
            fputs("with dense attention", to);
        }
    }
    if (data->device[0]) {
        fputs(", on ", to);
        dsvi_put_text(to, data->device);
    }
    fputs(".</p>\n", to);
    put_progress(to, data);
    return DSV_OK;
}

static void tile_begin(FILE *to, const char *title)
{
    fprintf(to, "<div class=\"tile\"><span>%s</span><b>", title);
}

static void tile_middle(FILE *to)
{
    fputs("</b><span>", to);
}

static void tile_end(FILE *to)
{
    fputs("</span></div>\n", to);
}

/* Writes which steps newest_mean covers: "last 20 steps". */
static void put_last_steps(FILE *to, const DsviReportData *data)
{
    int64_t steps = data->steps.rows < LAST_STEPS ? data->steps.rows : LAST_STEPS;
    if (steps == 1)
        fputs("last step", to);
    else if (steps > 1)
        fprintf(to, "last %lld steps", (long long)steps);
}

/* Shows the mean losses of the first and the last steps, or the losses of the first and the last step if the
 * run is short. */
static void loss_tile(FILE *to, const DsviReportData *data)
{
    const DsviReportTable *held = &data->validation;
    bool means = data->steps.rows >= FIRST_STEPS + LAST_STEPS;
    tile_begin(to, means ? "loss, last 20 steps" : "loss, last step");
    dsvi_put_short(to, means ? newest_mean(data, DSVI_LOSS) : newest_value(data, DSVI_LOSS), 4);
    tile_middle(to);
    dsvi_put_short(to, dsvi_report_mean(&data->steps, DSVI_LOSS, 0, means ? FIRST_STEPS : 1), 4);
    fputs(means ? " over the first 10" : " at the first", to);
    if (held->rows > 0) {
        fputs("; held out ", to);
        dsvi_put_short(to, dsvi_report_cell(held, held->rows - 1, DSVI_VALIDATION_LOSS), 4);
    }
    tile_end(to);
}

/* Returns whether no block is sparse because the newest step is in the dense finish. */
static bool in_dense_finish(const DsviReportData *data)
{
    const DsvConfig *c = &data->config;
    double steps = (double)c->max_train_steps;
    return data->has_config && c->sparse_enabled && newest_value(data, DSVI_SPARSE_BLOCKS) == 0 &&
           newest_value(data, DSVI_STEP) > steps - floor(c->sparse_dense_finish * steps + 0.5);
}

static void sparse_tiles(FILE *to, const DsviReportData *data)
{
    double blocks = data->model_blocks;
    if (isnan(blocks) && data->block_count > 0)
        blocks = (double)data->block_count;
    tile_begin(to, "sparse blocks");
    dsvi_put_count(to, newest_value(data, DSVI_SPARSE_BLOCKS));
    tile_middle(to);
    if (!isnan(blocks)) {
        fputs("of ", to);
        dsvi_put_count(to, blocks);
    }
    if (in_dense_finish(data))
        fputs(", dense finish", to);
    tile_end(to);
    tile_begin(to, "density");
    dsvi_put_fixed(to, newest_mean(data, DSVI_DENSITY), 3);
    tile_middle(to);
    fputs("of the keys, ", to);
    put_last_steps(to, data);
    tile_end(to);
    tile_begin(to, "captured mass");
    dsvi_put_fixed(to, newest_value(data, DSVI_CAPTURED_MASS), 3);
    tile_middle(to);
    fputs("of the exact attention", to);
    tile_end(to);
}

DsvStatus dsvi_report_tiles(FILE *to, const DsviReportData *data)
{
    double peak = NAN;
    for (int64_t r = 0; r < data->steps.rows; r++)
        peak = fmax(peak, dsvi_report_cell(&data->steps, r, DSVI_MEMORY_BYTES));
    tile_begin(to, "steps");
    dsvi_put_count(to, newest_value(data, DSVI_STEP));
    tile_middle(to);
    if (data->has_config) {
        fputs("of ", to);
        dsvi_put_count(to, (double)data->config.max_train_steps);
    }
    tile_end(to);
    loss_tile(to, data);
    tile_begin(to, "time per step");
    dsvi_put_ms(to, newest_mean(data, DSVI_STEP_MS));
    tile_middle(to);
    dsvi_put_large(to, newest_mean(data, DSVI_TOKENS_PER_S));
    fputs(" tokens/s, ", to);
    put_last_steps(to, data);
    tile_end(to);
    sparse_tiles(to, data);
    tile_begin(to, "peak memory");
    dsvi_put_bytes(to, peak);
    tile_middle(to);
    if (data->planned_bytes > 0) {
        fputs("planned ", to);
        dsvi_put_bytes(to, data->planned_bytes);
    }
    tile_end(to);
    return DSV_OK;
}

/* Writes the value of an option to `text`, as in the configuration file. */
static DsvStatus value_text(const DsviOption *option, const DsvConfig *config, char *text, size_t room)
{
    FILE *to = fmemopen(text, room, "w");
    if (!to)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the option %s", option->info.key);
    dsvi_config_print_value(to, option, config);
    fclose(to);
    text[room - 1] = 0;
    return DSV_OK;
}

/* Writes the key of an option. Browsers may break the line after its underscores and dots. */
static void put_option_key(FILE *to, const char *key)
{
    fputs("<code>", to);
    for (const char *c = key; *c; c++)
        fprintf(to, "%c%s", *c, *c == '_' || *c == '.' ? "<wbr>" : "");
    fputs("</code>", to);
}

/* Writes a table of the options that differ from their defaults, or (differing == false) of all others. */
static DsvStatus options_table(FILE *to, const DsviReportData *data, bool differing)
{
    char value[8 * DSV_TEXT_MAX], initial[8 * DSV_TEXT_MAX];
    DsvConfig defaults;
    dsv_config_defaults(&defaults);
    fprintf(to, "<table><tr><th scope=\"col\">option</th><th scope=\"col\">value</th>%s</tr>\n",
            differing ? "<th scope=\"col\">default</th>" : "");
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++) {
        const DsviOption *option = &dsvi_options()[i];
        DSVI_TRY(value_text(option, &data->config, value, sizeof value));
        DSVI_TRY(value_text(option, &defaults, initial, sizeof initial));
        if ((strcmp(value, initial) != 0) != differing)
            continue;
        fputs("<tr><td>", to);
        put_option_key(to, option->info.key);
        fputs("</td><td><code>", to);
        dsvi_put_text(to, value);
        if (differing) {
            fputs("</code></td><td><code>", to);
            dsvi_put_text(to, initial);
        }
        fputs("</code></td></tr>\n", to);
    }
    fputs("</table>\n", to);
    return DSV_OK;
}

DsvStatus dsvi_report_config(FILE *to, const DsviReportData *data)
{
    if (!data->has_config) {
        fputs("<p class=\"note\">The configuration cannot be read: ", to);
        dsvi_put_text(to, data->config_problem);
        fputs(".</p>\n", to);
        return DSV_OK;
    }
    fputs("<p>Options that differ from their defaults:</p>\n", to);
    DSVI_TRY(options_table(to, data, true));
    fputs("<details><summary>All other options</summary>\n", to);
    DSVI_TRY(options_table(to, data, false));
    fputs("</details>\n", to);
    return DSV_OK;
}

DsvStatus dsvi_report_footer(FILE *to, const DsviReportData *data)
{
    fputs("Written by dsv " DSV_VERSION, to);
    if (data->version[0]) {
        fputs(" about a run of dsv ", to);
        dsvi_put_text(to, data->version);
    }
    fputc('.', to);
    if (data->unfinished[0]) {
        fputs(" Left out because it is incomplete: the last line of ", to);
        dsvi_put_text(to, data->unfinished);
        fputc('.', to);
    }
    return DSV_OK;
}
