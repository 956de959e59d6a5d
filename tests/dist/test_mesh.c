/* The mesh: groups of every layout, options that do not suit the number of ranks, and the text picture. */
#include "test.h"

#include "dist/mesh.h"
#include "local_ranks.h"

typedef struct Layout {
    int64_t cp_size, dp_size, hsdp_shard_dim;
} Layout;

static DsvConfig settings_of(const Layout *layout)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.cp_size = layout->cp_size;
    settings.dp_size = layout->dp_size;
    settings.hsdp_shard_dim = layout->hsdp_shard_dim;
    return settings;
}

/* Checks that the group has exactly the ranks with the same quotient by `unit`, or the same remainder. */
static DsvStatus check_group(DsviComm *group, int64_t rank, int64_t ranks, int64_t unit, bool consecutive)
{
    double sum = (double)rank, expected = 0;
    int64_t members = 0;
    for (int64_t r = 0; r < ranks; r++) {
        if (consecutive ? r / unit != rank / unit : r % unit != rank % unit)
            continue;
        expected += (double)r;
        members++;
    }
    if (dsvi_comm_size(group) != members)
        return DSVI_FAIL(DSV_E_INTERNAL, "%d ranks, not %d", (int)dsvi_comm_size(group), (int)members);
    DSVI_TRY(dsvi_comm_all_reduce(group, DSVI_F64, &sum, 1));
    return sum == expected ? DSV_OK : DSVI_FAIL(DSV_E_INTERNAL, "other ranks: %g, not %g", sum, expected);
}

static DsvStatus use_mesh(DsviComm *comm, void *context)
{
    DsviMesh mesh;
    DsvConfig settings = settings_of(context);
    int64_t rank = dsvi_comm_rank(comm), ranks = dsvi_comm_size(comm);
    DSVI_TRY(dsvi_mesh_make(&settings, comm, &mesh));
    DsvStatus status = check_group(mesh.cp, rank, ranks, mesh.cp_ranks, true);
    if (status == DSV_OK)
        status = check_group(mesh.shard, rank, ranks, mesh.shard_ranks, true);
    if (status == DSV_OK)
        status = check_group(mesh.replica, rank, ranks, mesh.shard_ranks, false);
    bool sound = mesh.data_ranks * mesh.cp_ranks == ranks && mesh.replica_ranks * mesh.shard_ranks == ranks &&
                 mesh.data_rank * mesh.cp_ranks + mesh.cp_rank == rank &&
                 mesh.replica_rank * mesh.shard_ranks + mesh.shard_rank == rank &&
                 (mesh.cp_ranks == 1 || mesh.cp_rank == dsvi_comm_rank(mesh.cp)) &&
                 (!mesh.cp || mesh.cp != comm);
    dsvi_mesh_free(&mesh);
    return status != DSV_OK || sound ? status : DSVI_FAIL(DSV_E_INTERNAL, "the numbers do not agree");
}

static void groups_of_every_layout(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int64_t context = 1; context <= ranks; context++)
            for (int64_t shard = 1; shard <= ranks; shard++)
                if (ranks % context == 0 && ranks % shard == 0)
                    run_ranks_well(ranks, use_mesh, &(Layout){context, 0, shard});
}

typedef struct Expected {
    Layout layout;
    int64_t cp_ranks, data_ranks, shard_ranks;
} Expected;

static DsvStatus check_sizes(DsviComm *comm, void *context)
{
    const Expected *wanted = context;
    DsvConfig settings = settings_of(&wanted->layout);
    DsviMesh mesh;
    DSVI_TRY(dsvi_mesh_make(&settings, comm, &mesh));
    bool sound = mesh.cp_ranks == wanted->cp_ranks && mesh.data_ranks == wanted->data_ranks &&
                 mesh.shard_ranks == wanted->shard_ranks;
    dsvi_mesh_free(&mesh);
    return sound ? DSV_OK : DSVI_FAIL(DSV_E_INTERNAL, "other sizes");
}

static void unset_options_are_derived(void **state)
{
    static const Expected wanted[] = {
        {{1, 0, 0}, 1, 6, 6}, {{0, 0, 0}, 1, 6, 6}, {{0, 2, 0}, 3, 2, 6},
        {{3, 0, 2}, 3, 2, 2}, {{6, 1, 1}, 6, 1, 1}, {{2, 3, 3}, 2, 3, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        run_ranks_well(6, check_sizes, (void *)&wanted[i]);
}

typedef struct Mistake {
    const char *assignment[3];
    int64_t ranks;
    const char *sentence;
} Mistake;

static DsvStatus make_mistake(DsviComm *comm, void *context)
{
    const Mistake *mistake = context;
    DsvConfig settings;
    DsviMesh mesh;
    dsv_config_defaults(&settings);
    for (int i = 0; i < 3 && mistake->assignment[i]; i++)
        DSVI_TRY(dsv_config_set(&settings, mistake->assignment[i]));
    return dsvi_mesh_make(&settings, comm, &mesh);
}

static void mistakes_name_the_option(void **state)
{
    static const Mistake mistakes[] = {
        {{"cp_size=3"}, 4, "cp_size is 3, expected a divisor of the number of ranks, 4"},
        {{"cp_size=2"}, 1, "cp_size is 2, and one rank is alone: expected 1"},
        {{"dp_size=3"}, 4, "dp_size is 3, expected a divisor of the number of ranks, 4"},
        {{"dp_size=2"}, 4, "dp_size is 2, expected 4: 4 ranks with cp_size 1"},
        {{"cp_size=4", "dp_size=2"}, 4, "dp_size is 2, expected 1: 4 ranks with cp_size 4"},
        {{"hsdp_shard_dim=8"}, 4, "hsdp_shard_dim is 8, expected a divisor of the number of ranks, 4"},
        {{"cp_size=4", "cp_heads=3"}, 4, "cp_heads is 3, expected a divisor of cp_size, 4"},
    };
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        run_ranks(mistakes[i].ranks, 60, make_mistake, (void *)&mistakes[i], outcome);
        for (int64_t r = 0; r < mistakes[i].ranks; r++) {
            assert_int_equal(outcome[r].status, DSV_E_USAGE);
            assert_string_equal(outcome[r].sentence, mistakes[i].sentence);
        }
    }
}

static void gather_line(void *context, const char *line)
{
    strcat(context, line);
    strcat(context, "\n");
}

static void the_picture(void **state)
{
    static const int64_t bound[] = {0, 128, 256, 300};
    static const DsviMesh some = {.data_ranks = 2, .cp_ranks = 3, .shard_ranks = 2, .replica_ranks = 3};
    static const DsviMesh all_alike = {.data_ranks = 6, .cp_ranks = 1, .shard_ranks = 6, .replica_ranks = 1};
    char text[1024] = "";
    (void)state;
    dsvi_mesh_describe(&some, bound, gather_line, text);
    assert_string_equal(text, "    tokens       0 to     127 of each clip: rank    0    3\n"
                              "    tokens     128 to     255 of each clip: rank    1    4\n"
                              "    tokens     256 to     299 of each clip: rank    2    5\n"
                              "    part   1 of   2 of the state: rank    0    2    4\n"
                              "    part   2 of   2 of the state: rank    1    3    5\n");
    text[0] = 0;
    dsvi_mesh_describe(&all_alike, bound, gather_line, text);
    assert_string_equal(text, "");
}

/* With many ranks the picture shows the first and the last, in lines of limited length. */
static void the_picture_of_many(void **state)
{
    static int64_t bound[65];
    static const DsviMesh many = {.data_ranks = 64, .cp_ranks = 64, .shard_ranks = 4096, .replica_ranks = 1};
    char text[4096] = "";
    int lines = 0;
    (void)state;
    for (int i = 0; i <= 64; i++)
        bound[i] = 128 * i;
    dsvi_mesh_describe(&many, bound, gather_line, text);
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 8);
    assert_non_null(strstr(text, "tokens       0 to     127 of each clip: rank    0   64  128  192  256  320"
                                 "  ... 4032\n"));
    assert_non_null(strstr(text, "    ...\n"));
    assert_non_null(strstr(text, "tokens    8064 to    8191 of each clip: rank   63"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_every_layout),   cmocka_unit_test(unset_options_are_derived),
        cmocka_unit_test(mistakes_name_the_option), cmocka_unit_test(the_picture),
        cmocka_unit_test(the_picture_of_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
