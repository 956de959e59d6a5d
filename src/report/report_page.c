/* See report_page.h. */
#include "report/report_page.h"

#include <string.h>

#include "report/report_heat.h"
#include "report/report_text.h"

void dsvi_report_note(FILE *to, const char *sentence)
{
    fputs("<p class=\"note\">", to);
    dsvi_put_text(to, sentence);
    fputs("</p>\n", to);
}

void dsvi_report_figure(FILE *to)
{
    fputs("<p class=\"figure\"><b>", to);
}

static DsvStatus palette(FILE *to, const DsviReportData *data)
{
    (void)data;
    dsvi_heat_palette(to);
    return DSV_OK;
}

static const struct {
    const char *name;
    DsvStatus (*fill)(FILE *to, const DsviReportData *data);
} slot[] = {
    {"name", dsvi_report_name},         {"palette", palette},           {"sentence", dsvi_report_sentence},
    {"tiles", dsvi_report_tiles},       {"loss", dsvi_report_loss},     {"noise", dsvi_report_noise},
    {"gradient", dsvi_report_gradient}, {"rate", dsvi_report_rate},     {"sparsity", dsvi_report_sparsity},
    {"blocks", dsvi_report_blocks},     {"heads", dsvi_report_heads},   {"decisions", dsvi_report_decisions},
    {"time", dsvi_report_time},         {"memory", dsvi_report_memory}, {"clips", dsvi_report_clips},
    {"config", dsvi_report_config},     {"footer", dsvi_report_footer},
};

static DsvStatus fill_slot(FILE *to, const DsviReportData *data, const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof slot / sizeof *slot; i++)
        if (strlen(slot[i].name) == length && strncmp(slot[i].name, name, length) == 0)
            return slot[i].fill(to, data);
    return DSVI_FAIL(DSV_E_INTERNAL, "page.html has a slot %.*s that nothing fills", (int)length, name);
}

DsvStatus dsvi_report_page(FILE *to, const DsviReportData *data)
{
    const char *at = dsvi_report_template, *open;
    while ((open = strstr(at, "{{"))) {
        const char *name = open + 2, *end = strstr(name, "}}");
        DSVI_ASSERT(end);
        fwrite(at, 1, (size_t)(open - at), to);
        DSVI_TRY(fill_slot(to, data, name, (size_t)(end - name)));
        at = end + 2;
    }
    fputs(at, to);
    return DSV_OK;
}
