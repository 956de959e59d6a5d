/* See mesh.h. */
#include "dist/mesh.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static DsvStatus not_divisor(const char *key, int64_t value, int64_t ranks)
{
    if (ranks == 1)
        return DSVI_FAIL(DSV_E_USAGE, "%s is %" PRId64 ", and one rank is alone: wanted 1", key, value);
    return DSVI_FAIL(DSV_E_USAGE, "%s is %" PRId64 ", wanted a divisor of the number of ranks, %" PRId64, key,
                     value, ranks);
}

/* The sizes of both layouts; a setting of 0 is what the others leave. */
static DsvStatus lay_out(const DsvConfig *settings, int64_t ranks, DsvMesh *mesh)
{
    int64_t context = settings->cp_size, data = settings->dp_size, shard = settings->hsdp_shard_dim;
    if (data > 0 && ranks % data)
        return not_divisor("dp_size", data, ranks);
    if (context == 0)
        context = data > 0 ? ranks / data : 1;
    if (ranks % context)
        return not_divisor("cp_size", context, ranks);
    if (data > 0 && data * context != ranks)
        return DSVI_FAIL(DSV_E_USAGE, "dp_size is %" PRId64 ", wanted %" PRId64 ": %" PRId64
                         " ranks with cp_size %" PRId64, data, ranks / context, ranks, context);
    if (shard == 0)
        shard = ranks;
    if (ranks % shard)
        return not_divisor("hsdp_shard_dim", shard, ranks);
    if (settings->cp_heads > 0 && context % settings->cp_heads)
        return DSVI_FAIL(DSV_E_USAGE, "cp_heads is %" PRId64 ", wanted a divisor of cp_size, %" PRId64,
                         settings->cp_heads, context);
    mesh->context_ranks = context;
    mesh->data_ranks = ranks / context;
    mesh->shard_ranks = shard;
    mesh->replica_ranks = ranks / shard;
    return DSV_OK;
}

/* The group of the ranks with this colour, of which there are `ranks`. */
static DsvStatus make_group(const DsvMesh *mesh, int64_t ranks, int64_t colour, DsvComm **out)
{
    *out = NULL;
    if (ranks == dsvi_comm_size(mesh->all))
        *out = mesh->all;
    else if (ranks > 1)
        return dsvi_comm_split(mesh->all, colour, out);
    return DSV_OK;
}

DsvStatus dsvi_mesh_make(const DsvConfig *settings, DsvComm *all, DsvMesh *out)
{
    DsvStatus status;
    DsvMesh *mesh = out;
    int64_t rank = dsvi_comm_rank(all);
    memset(mesh, 0, sizeof *mesh);
    DSVI_TRY(lay_out(settings, dsvi_comm_size(all), mesh));
    mesh->all = all;
    mesh->data_rank = rank / mesh->context_ranks;
    mesh->context_rank = rank % mesh->context_ranks;
    mesh->replica_rank = rank / mesh->shard_ranks;
    mesh->shard_rank = rank % mesh->shard_ranks;
    if (mesh->context_ranks > 1)
        DSVI_TRY_GOTO(status, dsvi_comm_split(all, mesh->data_rank, &mesh->context), fail);
    DSVI_TRY_GOTO(status, make_group(mesh, mesh->shard_ranks, mesh->replica_rank, &mesh->shard), fail);
    DSVI_TRY_GOTO(status, make_group(mesh, mesh->replica_ranks, mesh->shard_rank, &mesh->replica), fail);
    return DSV_OK;
fail:
    dsvi_mesh_free(mesh);
    return status;
}

void dsvi_mesh_free(DsvMesh *mesh)
{
    if (mesh->replica != mesh->all)
        dsvi_comm_close(&mesh->replica);
    if (mesh->shard != mesh->all)
        dsvi_comm_close(&mesh->shard);
    dsvi_comm_close(&mesh->context);
    memset(mesh, 0, sizeof *mesh);
}

/* ---- the picture ---- */

enum { LINE = 160, NAMED = 8 }; /* rows and ranks of a row that are shown; of more, the last and the first */

DSVI_PRINTF(2, 3)
static void append(char text[LINE], const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, LINE - used, format, args);
    va_end(args);
}

/* Whether number i of n is shown, as such or as the one that stands for those left out. */
static bool shown(int64_t i, int64_t n, bool *stands)
{
    *stands = n > NAMED && i == NAMED - 2;
    return n <= NAMED || i < NAMED - 1 || i == n - 1;
}

/* The ranks whose place in their group is `place`. */
static void name_ranks(char text[LINE], int64_t place, int64_t group_ranks, int64_t groups)
{
    bool stands;
    for (int64_t g = 0; g < groups; g++) {
        if (!shown(g, groups, &stands))
            continue;
        if (stands)
            append(text, "  ...");
        else
            append(text, " %4" PRId64, g * group_ranks + place);
    }
}

static void draw_context(const DsvMesh *mesh, const int64_t *token_bound, DsvMeshLine *line, void *context)
{
    bool stands;
    for (int64_t place = 0; place < mesh->context_ranks; place++) {
        char text[LINE] = "";
        if (!shown(place, mesh->context_ranks, &stands))
            continue;
        if (stands)
            append(text, "    ...");
        else
            append(text, "    tokens %7" PRId64 " to %7" PRId64 " of each clip: rank", token_bound[place],
                   token_bound[place + 1] - 1);
        if (!stands)
            name_ranks(text, place, mesh->context_ranks, mesh->data_ranks);
        line(context, text);
    }
}

void dsvi_mesh_draw(const DsvMesh *mesh, const int64_t *token_bound, DsvMeshLine *line, void *context)
{
    bool stands;
    if (mesh->context_ranks > 1)
        draw_context(mesh, token_bound, line, context);
    for (int64_t part = 0; part < mesh->shard_ranks && mesh->replica_ranks > 1; part++) {
        char text[LINE] = "";
        if (!shown(part, mesh->shard_ranks, &stands))
            continue;
        if (stands)
            append(text, "    ...");
        else
            append(text, "    part %3" PRId64 " of %3" PRId64 " of the state: rank", part + 1,
                   mesh->shard_ranks);
        if (!stands)
            name_ranks(text, part, mesh->shard_ranks, mesh->replica_ranks);
        line(context, text);
    }
}
