/* The option train_modules: the parameters that it does not name keep their bits, the others are trained as
 * without the option, with every optimizer, on one rank and on several. */
#include "test.h"

#include "train/tiny.h"
#include "train/train_modules.h"
#include "train_rig.h"

enum { OPTIMIZERS = 4, LATENT_CHANNELS = 96, STEPS = 4 };

static const char *const OPTIMIZER[OPTIMIZERS] = {"optimizer=adamw", "optimizer=adamw_bf16",
                                                  "optimizer=adamw_8bit", "optimizer=muon"};
#define SOME "train_modules=attn1, blocks.1.ffn.*.weight,blocks.0.modulation"

static void make_table(DsvConfig *settings, DsviParamTable *table)
{
    DsviDitConfig config;
    assert_ok(dsvi_dit_config_make(settings, &config));
    config.in_channels = config.out_channels = LATENT_CHANNELS;
    assert_ok(dsvi_param_table_make(&config, table));
}

static bool is_trained(const DsviParam *param)
{
    return strstr(param->name, ".attn1.") ||
           (strstr(param->name, "blocks.1.ffn.") && strstr(param->name, ".weight")) ||
           strstr(param->name, "blocks.0.scale_shift_table");
}

/* Fills `flat` with the weights of the start. A new model's head is zero, and no gradient passes it. */
static void make_start(const DsviParamTable *table, float *flat)
{
    const DsviParam *head = &table->params[dsvi_param_find(table, "proj_out.weight")];
    dsvi_weights_init(table, 1, flat);
    for (int64_t i = 0; i < head->count; i++)
        flat[head->offset + i] = (float)(0.02 * sin((double)i));
}

static DsvStatus start_bucket(void *context, int64_t bucket, void *data)
{
    const DsviParamTable *table = context;
    float *flat = malloc((size_t)table->elements * sizeof *flat);
    make_start(table, flat);
    memcpy(data, flat + table->begin[bucket],
           (size_t)(table->begin[bucket + 1] - table->begin[bucket]) * sizeof *flat);
    free(flat);
    return DSV_OK;
}

static DsvStatus start_with_a_head(DsviTrainer *t, int step)
{
    if (step > 0)
        return DSV_OK;
    return dsvi_trainer_start(t, &(DsviBucketIo){start_bucket, &t->table});
}

static Rig train(const char *optimizer, int64_t ranks, int64_t stage, const char *modules, int steps)
{
    const char *assignment[] = {optimizer,
                                "mixed_precision=no",
                                "sparse.enabled=false",
                                "max_grad_norm=0",
                                "warmup_steps=0",
                                "weight_decay=0.1",
                                modules,
                                NULL};
    Rig rig = {.device = "cpu",
               .assignment = assignment,
               .ranks = ranks,
               .stage = stage,
               .steps = steps,
               .samples = 6,
               .between = start_with_a_head};
    rig_train(&rig);
    rig.assignment = NULL;
    return rig;
}

/* Checks that exactly the trained parameters have left their start, in weights and moving average. */
static void check_moved(const Rig *rig, const DsviParamTable *table, const float *start)
{
    const RigRank *rank = &rig->rank[0];
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        size_t bytes = (size_t)param->count * sizeof(float);
        bool same = memcmp(rank->weights + param->offset, start + param->offset, bytes) == 0;
        bool same_ema = memcmp(rank->ema + param->offset, start + param->offset, bytes) == 0;
        if (same == is_trained(param) || same_ema == is_trained(param))
            fail_msg("%s: %s, weights %s, average %s", param->name, is_trained(param) ? "trained" : "frozen",
                     same ? "kept" : "changed", same_ema ? "kept" : "changed");
    }
}

static void only_named_parameters_change(void **state)
{
    DsvConfig settings;
    DsviParamTable table;
    (void)state;
    tiny_settings(&settings);
    make_table(&settings, &table);
    float *start = malloc((size_t)table.elements * sizeof *start);
    assert_non_null(start);
    make_start(&table, start);
    for (int i = 0; i < OPTIMIZERS; i++) {
        Rig one = train(OPTIMIZER[i], 1, 1, SOME, STEPS);
        check_moved(&one, &table, start);
        for (int64_t stage = 1; stage <= 3; stage++) {
            Rig two = train(OPTIMIZER[i], 2, stage, SOME, STEPS);
            check_moved(&two, &table, start);
            rig_same_on_all_ranks(&two);
            rig_free(&two);
        }
        rig_free(&one);
    }
    free(start);
    dsvi_param_table_free(&table);
}

/* After one step, without clipping, the trained parameters are where they are when all are trained. */
static void named_parameters_are_trained_as_ever(void **state)
{
    DsvConfig settings;
    DsviParamTable table;
    (void)state;
    tiny_settings(&settings);
    make_table(&settings, &table);
    for (int i = 0; i < OPTIMIZERS; i++) {
        Rig all = train(OPTIMIZER[i], 1, 1, "train_modules=", 1), some = train(OPTIMIZER[i], 1, 1, SOME, 1);
        double apart = 0, norm = 0;
        for (int64_t p = 0; p < table.count; p++)
            for (int64_t k = 0; k < table.params[p].count && is_trained(&table.params[p]); k++) {
                double x = all.rank[0].weights[table.params[p].offset + k];
                apart += pow(x - some.rank[0].weights[table.params[p].offset + k], 2);
                norm += x * x;
            }
        assert_error_below(sqrt(apart / norm), 1e-6, "%s", OPTIMIZER[i]);
        assert_true(some.rank[0].step[0].grad_norm < all.rank[0].step[0].grad_norm);
        rig_free(&all);
        rig_free(&some);
    }
    dsvi_param_table_free(&table);
}

static void wrong_names_are_refused(void **state)
{
    DsvConfig settings;
    DsviParamTable table;
    bool *frozen;
    (void)state;
    tiny_settings(&settings);
    make_table(&settings, &table);
    assert_ok(dsv_config_set(&settings, "train_modules=attn1,attn3"));
    assert_fails(DSV_E_USAGE, "no parameter is called attn3",
                 dsvi_train_modules_make(&settings, &table, &frozen));
    assert_null(frozen);
    assert_ok(dsv_config_set(&settings, "train_modules=attn1,,ffn"));
    assert_fails(DSV_E_USAGE, "train_modules has an empty name",
                 dsvi_train_modules_make(&settings, &table, &frozen));
    assert_ok(dsv_config_set(&settings, "train_modules=attn1"));
    assert_ok(dsv_config_set(&settings, "lora_rank=4"));
    assert_fails(DSV_E_USAGE, "train_modules is attn1 and lora_rank is 4",
                 dsvi_train_modules_make(&settings, &table, &frozen));
    assert_ok(dsv_config_set(&settings, "lora_rank=0"));
    assert_ok(dsv_config_set(&settings, "train_modules=self_attn")); /* the name of the Wan repository */
    assert_ok(dsvi_train_modules_make(&settings, &table, &frozen));
    for (int64_t i = 0; i < table.count; i++)
        assert_true(frozen[i] == !strstr(table.params[i].name, ".attn1."));
    free(frozen);
    dsvi_param_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_named_parameters_change),
        cmocka_unit_test(named_parameters_are_trained_as_ever),
        cmocka_unit_test(wrong_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
