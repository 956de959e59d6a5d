/* See mesh.h. */
#include "dist/mesh.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static DsvStatus not_divisor(const char *key, int64_t value, int64_t ranks)
{
    if (ranks == 1)
        return DSVI_FAIL(DSV_E_USAGE, "%s is %" PRId64 ", and one rank is alone: expected 1", key, value);
    return DSVI_FAIL(DSV_E_USAGE, "%s is %" PRId64 ", expected a divisor of the number of ranks, %" PRId64,
                     key, value, ranks);
}

int64_t dsvi_mesh_cp_ranks(const DsvConfig *config, int64_t ranks)
{
    if (config->cp_size > 0)
        return config->cp_size;
    return config->dp_size > 0 ? ranks / config->dp_size : 1;
}

/* Computes the sizes of both divisions. An option of 0 follows from the others and the number of ranks. */
static DsvStatus compute_mesh_sizes(const DsvConfig *config, int64_t ranks, DsviMesh *mesh)
{
    int64_t data = config->dp_size, shard = config->hsdp_shard_dim;
    if (data > 0 && ranks % data)
        return not_divisor("dp_size", data, ranks);
    int64_t cp = dsvi_mesh_cp_ranks(config, ranks);
    if (ranks % cp)
        return not_divisor("cp_size", cp, ranks);
    if (data > 0 && data * cp != ranks)
        return DSVI_FAIL(DSV_E_USAGE,
                         "dp_size is %" PRId64 ", expected %" PRId64 ": %" PRId64
                         " ranks with cp_size %" PRId64,
                         data, ranks / cp, ranks, cp);
    if (shard == 0)
        shard = ranks;
    if (ranks % shard)
        return not_divisor("hsdp_shard_dim", shard, ranks);
    if (config->cp_heads > 0 && cp % config->cp_heads)
        return DSVI_FAIL(DSV_E_USAGE, "cp_heads is %" PRId64 ", expected a divisor of cp_size, %" PRId64,
                         config->cp_heads, cp);
    mesh->cp_ranks = cp;
    mesh->data_ranks = ranks / cp;
    mesh->shard_ranks = shard;
    mesh->replica_ranks = ranks / shard;
    return DSV_OK;
}

/* Makes the group of the ranks that pass the same colour; each such group has `ranks` ranks. */
static DsvStatus make_mesh_group(const DsviMesh *mesh, int64_t ranks, int64_t colour, DsviComm **out)
{
    *out = NULL;
    if (ranks == dsvi_comm_size(mesh->all))
        *out = mesh->all;
    else if (ranks > 1)
        return dsvi_comm_split(mesh->all, colour, out);
    return DSV_OK;
}

DsvStatus dsvi_mesh_make(const DsvConfig *config, DsviComm *all, DsviMesh *out)
{
    DsvStatus status;
    DsviMesh *mesh = out;
    int64_t rank = dsvi_comm_rank(all);
    memset(mesh, 0, sizeof *mesh);
    DSVI_TRY(compute_mesh_sizes(config, dsvi_comm_size(all), mesh));
    mesh->all = all;
    mesh->data_rank = rank / mesh->cp_ranks;
    mesh->cp_rank = rank % mesh->cp_ranks;
    mesh->replica_rank = rank / mesh->shard_ranks;
    mesh->shard_rank = rank % mesh->shard_ranks;
    if (mesh->cp_ranks > 1)
        DSVI_TRY_GOTO(status, dsvi_comm_split(all, mesh->data_rank, &mesh->cp), fail);
    DSVI_TRY_GOTO(status, make_mesh_group(mesh, mesh->shard_ranks, mesh->replica_rank, &mesh->shard), fail);
    DSVI_TRY_GOTO(status, make_mesh_group(mesh, mesh->replica_ranks, mesh->shard_rank, &mesh->replica), fail);
    return DSV_OK;
fail:
    dsvi_mesh_free(mesh);
    return status;
}

void dsvi_mesh_free(DsviMesh *mesh)
{
    if (mesh->replica != mesh->all)
        dsvi_comm_close(&mesh->replica);
    if (mesh->shard != mesh->all)
        dsvi_comm_close(&mesh->shard);
    dsvi_comm_close(&mesh->cp);
    memset(mesh, 0, sizeof *mesh);
}

/* ---- description ---- */

/* LINE: bytes of a line of the description. NAMED: how many rows are shown, and how many ranks in a row; if
   there are more, the first ones and the last are shown. */
enum { LINE = 160, NAMED = 8 };

DSVI_PRINTF(2, 3)
static void append_text(char text[LINE], const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, LINE - used, format, args);
    va_end(args);
}

/* Returns whether entry i of n is shown. *is_dots: it is shown as "...", for the entries that are left
 * out. */
static bool is_shown(int64_t i, int64_t n, bool *is_dots)
{
    *is_dots = n > NAMED && i == NAMED - 2;
    return n <= NAMED || i < NAMED - 1 || i == n - 1;
}

/* Appends the ranks whose index in their group is `place`. */
static void name_ranks(char text[LINE], int64_t place, int64_t group_ranks, int64_t groups)
{
    bool is_dots;
    for (int64_t g = 0; g < groups; g++) {
        if (!is_shown(g, groups, &is_dots))
            continue;
        if (is_dots)
            append_text(text, "  ...");
        else
            append_text(text, " %4" PRId64, g * group_ranks + place);
    }
}

static void draw_context(const DsviMesh *mesh, const int64_t *token_bound, DsviMeshLine *line, void *context)
{
    bool is_dots;
    for (int64_t place = 0; place < mesh->cp_ranks; place++) {
        char text[LINE] = "";
        if (!is_shown(place, mesh->cp_ranks, &is_dots))
            continue;
        if (is_dots)
            append_text(text, "    ...");
        else
            append_text(text, "    tokens %7" PRId64 " to %7" PRId64 " of each clip: rank",
                        token_bound[place], token_bound[place + 1] - 1);
        if (!is_dots)
            name_ranks(text, place, mesh->cp_ranks, mesh->data_ranks);
        line(context, text);
    }
}

void dsvi_mesh_describe(const DsviMesh *mesh, const int64_t *token_bound, DsviMeshLine *line, void *context)
{
    bool is_dots;
    if (mesh->cp_ranks > 1)
        draw_context(mesh, token_bound, line, context);
    for (int64_t part = 0; part < mesh->shard_ranks && mesh->replica_ranks > 1; part++) {
        char text[LINE] = "";
        if (!is_shown(part, mesh->shard_ranks, &is_dots))
            continue;
        if (is_dots)
            append_text(text, "    ...");
        else
            append_text(text, "    part %3" PRId64 " of %3" PRId64 " of the state: rank", part + 1,
                        mesh->shard_ranks);
        if (!is_dots)
            name_ranks(text, part, mesh->shard_ranks, mesh->replica_ranks);
        line(context, text);
    }
}
