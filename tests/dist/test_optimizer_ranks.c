/* The option optimizer: the same bits at all stages of ZeRO, exact memory, checkpoints that do not depend on
 * the number of ranks, and the orthogonalisation of Muon. */
#include "test.h"

#include "backend/backend.h"
#include "train/muon.h"
#include "train/tiny.h"
#include "train_rig.h"

enum { OPTIMIZERS = 3, LATENT_CHANNELS = 96 };

static const char *device = "cpu";
static int64_t ranks_max = 3;

static const char *const BF16[] = {"optimizer=adamw_bf16", NULL};
static const char *const CODES[] = {"optimizer=adamw_8bit", "model.ffn_dim=70", NULL};
static const char *const MUON[] = {"optimizer=muon", NULL};
static const char *const *const ASSIGNMENT[OPTIMIZERS] = {BF16, CODES, MUON};

static Rig train(const char *const *assignment, int64_t ranks, int64_t stage)
{
    Rig rig = {
        .device = device, .assignment = assignment, .ranks = ranks, .stage = stage, .steps = 4, .samples = 6};
    rig_train(&rig);
    return rig;
}

static void stages_give_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        for (int64_t ranks = 2; ranks <= ranks_max; ranks++) {
            Rig first = train(ASSIGNMENT[i], ranks, 1);
            for (int64_t stage = 2; stage <= 3; stage++) {
                Rig other = train(ASSIGNMENT[i], ranks, stage);
                rig_same_bits(&first, &other);
                rig_free(&other);
            }
            rig_free(&first);
        }
    }
}

/* Returns the distance of two runs' weights, relative to how far the first run moved them. */
static double distance(const Rig *a, const Rig *b, const float *start)
{
    double apart = 0, moved = 0;
    for (int64_t i = 0; i < a->rank[0].elements; i++) {
        double x = a->rank[0].weights[i];
        apart += (x - b->rank[0].weights[i]) * (x - b->rank[0].weights[i]);
        moved += (x - start[i]) * (x - start[i]);
    }
    return sqrt(apart / moved);
}

/* Makes the table of the model that the rig trains. */
static void make_table(const char *const *assignment, DsviParamTable *table)
{
    DsvConfig settings;
    DsviDitConfig config;
    tiny_settings(&settings);
    for (int i = 0; assignment[i]; i++)
        assert_ok(dsv_config_set(&settings, assignment[i]));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    config.in_channels = config.out_channels = LATENT_CHANNELS;
    assert_ok(dsvi_param_table_make(&config, table));
}

/* Returns the weights with which the rig starts, to be freed. */
static float *starting_weights(const Rig *rig)
{
    DsviParamTable table;
    make_table(rig->assignment, &table);
    assert_int_equal(table.elements, rig->rank[0].elements);
    float *weights = malloc((size_t)table.elements * sizeof *weights);
    assert_non_null(weights);
    dsvi_weights_init(&table, 1, weights);
    dsvi_param_table_free(&table);
    return weights;
}

/* One rank and several order their sums differently. Muon's iteration and the codes enlarge the differences
 * of rounding, hence a bound on the distance relative to the way. */
static void ranks_equal_one_rank(void **state)
{
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        const char *exact[8] = {"mixed_precision=no", "sparse.enabled=false"};
        for (int n = 0; ASSIGNMENT[i][n]; n++)
            exact[2 + n] = ASSIGNMENT[i][n];
        Rig one = train(exact, 1, 1), many = train(exact, ranks_max, 3);
        float *start = starting_weights(&one);
        assert_error_below(distance(&one, &many, start), 0.02, "distance of %s", ASSIGNMENT[i][0]);
        free(start);
        rig_free(&one);
        rig_free(&many);
    }
}

/* AdamW with rounded moments stays close to AdamW with F32 moments. */
static void rounded_moments_change_little(void **state)
{
    static const char *const exact[] = {"mixed_precision=no", "sparse.enabled=false", NULL};
    static const char *const bf16[] = {"mixed_precision=no", "sparse.enabled=false", "optimizer=adamw_bf16",
                                       NULL};
    static const char *const codes[] = {"mixed_precision=no", "sparse.enabled=false", "optimizer=adamw_8bit",
                                        NULL};
    (void)state;
    Rig f32 = train(exact, 1, 1), low = train(bf16, 1, 1), coded = train(codes, 1, 1);
    float *start = starting_weights(&f32);
    double way_low = distance(&f32, &low, start), way_coded = distance(&f32, &coded, start);
    assert_true(way_low > 0 && way_coded > way_low);
    assert_error_below(way_low, 0.02, "distance of BF16 moments");
    assert_error_below(way_coded, 0.2, "distance of 8-bit moments");
    free(start);
    rig_free(&f32);
    rig_free(&low);
    rig_free(&coded);
}

/* Bytes of the optimizer's state on one rank, from the table of parameters alone. */
static size_t state_bytes(const DsviParamTable *table, size_t m, size_t v, bool scales)
{
    size_t bytes[2] = {0, 0}, scale_bytes = 0, sum = 0;
    for (int64_t b = 0; b < table->buckets; b++) {
        bool block = b > 0 && b < table->buckets - 1;
        size_t exact = (size_t)((block ? table->gemm[b] : table->begin[b + 1]) - table->begin[b]);
        size_t matrices = (size_t)(table->begin[b + 1] - table->begin[b]) - exact;
        bytes[0] += 4 * exact + m * matrices;
        bytes[1] += 4 * exact + v * matrices;
        scale_bytes += scales ? 4 * ((matrices + 255) / 256) : 0;
    }
    for (int i = 0; i < 2; i++)
        sum += (bytes[i] + 255) / 256 * 256 + (scale_bytes + 255) / 256 * 256;
    return sum;
}

static void state_takes_its_memory(void **state)
{
    static const size_t m[OPTIMIZERS] = {2, 1, 4}, v[OPTIMIZERS] = {2, 1, 0};
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        DsviParamTable table;
        Rig rig = train(ASSIGNMENT[i], 1, 1);
        make_table(ASSIGNMENT[i], &table);
        assert_int_equal(rig.rank[0].plan.by_class[DSVI_MEM_OPTIMIZER],
                         state_bytes(&table, m[i], v[i], i == 1));
        dsvi_param_table_free(&table);
        rig_free(&rig);
    }
}

/* ---- checkpoints ---- */

static void checkpoints_move_between_ranks(void **state)
{
    static const int64_t from[] = {1, 3}, to[] = {3, 2};
    (void)state;
    for (int i = 0; i < OPTIMIZERS; i++) {
        for (int way = 0; way < 2; way++) {
            rig_checkpoints_begin();
            Rig rig = {.device = device,
                       .assignment = ASSIGNMENT[i],
                       .ranks = from[way],
                       .stage = 3,
                       .steps = 4,
                       .samples = 6,
                       .between = rig_save_after_three_steps};
            rig_train(&rig);
            rig_free(&rig);
            rig.ranks = to[way];
            rig.stage = 2;
            rig.steps = 1;
            rig.between = rig_load_then_save;
            rig_train(&rig);
            rig_free(&rig);
            rig_same_checkpoints();
            rig_checkpoints_end();
        }
    }
}

/* ---- Muon ---- */

/* After the iteration X^T X (or X X^T) is near the identity in the sense of the method: its eigenvalues,
 * and thus its diagonal, are between 0.4 and 1.6, and the F32 iteration agrees with BF16 products. */
static void matrices_become_orthogonal(void **state)
{
    static const int64_t shapes[][2] = {{24, 24}, {16, 40}, {40, 16}};
    DsvConfig settings;
    DsviBackend backend = {0};
    (void)state;
    dsv_config_defaults(&settings);
    assert_ok(dsvi_backend_open(&settings, &backend));
    for (int i = 0; i < 3; i++) {
        int64_t rows = shapes[i][0], cols = shapes[i][1], n = rows * cols;
        int64_t small = rows < cols ? rows : cols, large = rows < cols ? cols : rows;
        float x[2][24 * 40];
        for (int act = 0; act < 2; act++) {
            static _Alignas(256) char memory[1 << 16];
            DsviArena arena;
            double square[2] = {0, 0};
            DsviMuon muon = {.elements = n, .side = small * small, .act = act ? DSVI_BF16 : DSVI_F32};
            dsvi_arena_bind(&arena, memory, sizeof memory);
            dsvi_muon_carve(&muon, &arena);
            muon.square = &square[0];
            muon.host_square = &square[1];
            dsvi_rng_fill_normal((DsviRng){1, DSVI_RNG_TEST, (uint32_t)i}, 0, x[act], n);
            assert_ok(dsvi_muon_orthogonalise(&muon, &backend, rows, cols, x[act]));
        }
        double apart = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            apart += (x[0][j] - x[1][j]) * (x[0][j] - x[1][j]);
            size += x[0][j] * x[0][j];
        }
        assert_error_below(sqrt(apart / size), 0.05, "BF16 against F32");
        for (int64_t j = 0; j < small; j++) {
            double sum = 0;
            for (int64_t k = 0; k < large; k++) {
                double value = x[0][rows <= cols ? j * cols + k : k * cols + j];
                sum += value * value;
            }
            assert_true(sum > 0.4 && sum < 1.6);
        }
    }
    dsvi_backend_close(&backend);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),      cmocka_unit_test(ranks_equal_one_rank),
        cmocka_unit_test(rounded_moments_change_little),  cmocka_unit_test(state_takes_its_memory),
        cmocka_unit_test(checkpoints_move_between_ranks), cmocka_unit_test(matrices_become_orthogonal),
    };
    const struct CMUnitTest cuda_tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(ranks_equal_one_rank),
        cmocka_unit_test(checkpoints_move_between_ranks),
    };
    if (argc < 2 || strcmp(argv[1], "cuda") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    device = "cuda";
    ranks_max = 2;
    return rig_two_gpus() ? cmocka_run_group_tests(cuda_tests, NULL, NULL) : SKIPPED;
}
