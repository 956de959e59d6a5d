/* dsv_plan: the table and the JSON of an example whose best plans are obvious, and which inputs are refused.
 */
#include "test.h"

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "base/scratch.h"
#include "dsv/dsv.h"

enum { LINES_MAX = 32 };

/* Transfers are free except for sending keys; attention takes 1 us per thousand pairs: dividing by heads is
 * best. */
static const char COSTS[] =
    "{\"about\": \"example\", \"transfers_beside_kernels\": false, \"memory_ps\": 0,"
    " \"attention\": {\"call_us\": [0, 0], \"dense_ps\": [1000, 1000], \"select_ps\": 0,"
    "                 \"lists_forward_ps\": [[0, 0], [1, 1000]], \"lists_backward_ps\": [[0, 0], [1, 1000]]},"
    " \"links\": [{\"ranks\": 2, \"head_exchange_us\": [[0, 0]], \"sequence_exchange_us\": [[0, 100000]],"
    "              \"sequence_swap_us\": [[0, 100000]]}]}";

typedef struct Said {
    int count;
    char line[LINES_MAX][256];
} Said;

static void listen(void *context, const char *text)
{
    Said *said = context;
    if (said->count < LINES_MAX)
        snprintf(said->line[said->count], sizeof said->line[0], "%s", text);
    said->count++;
}

static const char *write_text(const char *name, const char *text)
{
    const char *path = scratch_path(name);
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    return path;
}

/* 4 blocks of 4 heads, 5 x 24 x 24 latents: 720 tokens. */
static void set_up(DsvConfig *config)
{
    static const char *const SETTINGS[] = {
        "num_frames=9",           "height=48",          "width=48",
        "codec.spatial_levels=1", "model.num_layers=4", "model.num_attention_heads=4",
        "sparse.group=16",        "sparse.grain=1",     "train_batch_size=1",
    };
    dsv_config_defaults(config);
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++)
        assert_ok(dsv_config_set(config, SETTINGS[i]));
}

static const cJSON *at(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    assert_non_null(item);
    return item;
}

static void check_number(const cJSON *object, const char *name, double wanted)
{
    assert_error_below(fabs(cJSON_GetNumberValue(at(object, name)) - wanted), 1e-9 * (1 + fabs(wanted)),
                       "%s is %.12g, expected %.12g", name, cJSON_GetNumberValue(at(object, name)), wanted);
}

static void check_json(const char *path)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    cJSON *plan = cJSON_ParseWithLength(text, bytes);
    const cJSON *blocks = at(plan, "blocks"), *skewed = cJSON_GetArrayItem(blocks, 2);
    const double pair_ms = 1e-6 * 720 * 720 * 2; /* both passes of one head at density 1 */
    free(text);
    check_number(plan, "ranks", 2);
    assert_int_equal(cJSON_GetArraySize(at(plan, "token_bound")), 3);
    assert_int_equal(cJSON_GetArraySize(blocks), 4);
    assert_true(cJSON_IsNull(at(cJSON_GetArrayItem(blocks, 0), "density")));
    check_number(cJSON_GetArrayItem(blocks, 0), "ms", 2 * pair_ms);
    check_number(skewed, "head_ranks", 2);
    check_number(skewed, "sequence_ranks", 1);
    check_number(skewed, "ms", 0.8 * pair_ms);
    check_number(skewed, "keys_ms", 0);
    check_number(at(skewed, "naive_ms"), "heads_in_order", 1.2 * pair_ms);
    const cJSON *heads = at(skewed, "heads");
    assert_int_equal(cJSON_GetArraySize(heads), 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetArrayItem(heads, 0)), 1);
    assert_true(cJSON_GetNumberValue(at(at(skewed, "naive_ms"), "tokens")) > 100); /* at least one transfer */
    assert_int_equal(cJSON_GetArraySize(at(skewed, "candidates")), 2);
    cJSON_Delete(plan);
}

static void test_example(void **state)
{
    (void)state;
    DsvConfig config;
    Said said = {0};
    const char *json = scratch_path("plan.json"), *saved = scratch_path("saved.json");
    const DsvPlanQuestion question = {
        .ranks = 2,
        .table = write_text("costs.json", COSTS),
        .save = saved,
        .densities = write_text("densities.json", "[null, null, [0.8, 0.4, 0.2, 0.2], 0.25]"),
    };
    set_up(&config);
    assert_ok(dsv_plan(NULL, &question, &config, json, listen, &said));
    check_json(json);
    assert_int_equal(said.count, 11);
    assert_string_equal(said.line[0], "2 ranks share a clip of 720 tokens: 4 blocks, 4 heads of 64, batch 1");
    assert_string_equal(said.line[1], "costs: example");
    assert_string_equal(said.line[2], "rank 0   tokens 0 to 351");
    assert_int_equal(strncmp(said.line[7], "0-1     dense", 13), 0);
    assert_non_null(strstr(said.line[8], "0.20-0.80     2 x 1 "));
    assert_non_null(strstr(said.line[8], "   0 | 1-3"));
    assert_true(dsvi_path_exists(saved));
    const DsvPlanQuestion again = {.ranks = 2, .table = saved, .densities = question.densities};
    assert_ok(dsv_plan(NULL, &again, &config, json, NULL, NULL));
    check_json(json);
}

/* With measured costs of this machine, the plan is the fastest of those compared. */
static void test_measured_here(void **state)
{
    (void)state;
    DsvConfig config;
    char *text;
    size_t bytes;
    const char *json = scratch_path("plan.json");
    const DsvPlanQuestion question = {.ranks = 4, .densities = "0.1"};
    set_up(&config);
    assert_ok(dsv_config_set(&config, "threads=1"));
    assert_ok(dsv_plan(NULL, &question, &config, json, NULL, NULL));
    assert_ok(dsvi_file_read(json, 1 << 20, &text, &bytes));
    cJSON *plan = cJSON_ParseWithLength(text, bytes);
    const cJSON *block, *naive;
    free(text);
    cJSON_ArrayForEach(block, at(plan, "blocks")) {
        double ms = cJSON_GetNumberValue(at(block, "ms"));
        assert_true(ms > 0);
        cJSON_ArrayForEach(naive, at(block, "naive_ms"))
            assert_true(ms <= cJSON_GetNumberValue(naive) * (1 + 1e-9));
    }
    cJSON_Delete(plan);
}

static void refused(DsvStatus status, const char *words, DsvPlanQuestion question, const char *setting)
{
    DsvConfig config;
    set_up(&config);
    question.table = question.table ? question.table : scratch_path("costs.json");
    if (setting)
        assert_ok(dsv_config_set(&config, setting));
    assert_fails(status, words, dsv_plan(NULL, &question, &config, NULL, NULL, NULL));
}

static void test_refused(void **state)
{
    (void)state;
    write_text("costs.json", COSTS);
    refused(DSV_E_USAGE, "needs no plan: cp_size is 1", (DsvPlanQuestion){0}, NULL);
    refused(DSV_E_USAGE, "720 tokens in shards of a multiple of 1024 are too few",
            (DsvPlanQuestion){.ranks = 2}, "sparse.group=1024");
    refused(DSV_E_USAGE, "7 is no density", (DsvPlanQuestion){.ranks = 2, .densities = "7"}, NULL);
    refused(DSV_E_NOT_FOUND, "nowhere", (DsvPlanQuestion){.ranks = 2, .densities = "nowhere"}, NULL);
    refused(DSV_E_NOT_FOUND, "nowhere", (DsvPlanQuestion){.ranks = 2, .table = "nowhere"}, NULL);
    refused(DSV_E_USAGE, "none has a known price", (DsvPlanQuestion){.ranks = 3}, "cp_heads=3");
    refused(DSV_E_USAGE, "cp_heads is 2, expected a divisor of 3 ranks, at most 4 heads",
            (DsvPlanQuestion){.ranks = 3}, "cp_heads=2");
    refused(DSV_E_FORMAT, "expected a JSON array of 4 blocks, found an array of 2",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("few.json", "[1, 1]")}, NULL);
    refused(DSV_E_FORMAT, "block 1, head 2: expected a density above 0, at most 1, found 0",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("zero.json", "[1, [1, 1, 0, 1], 1, 1]")},
            NULL);
    refused(DSV_E_FORMAT, "block 0 has 2 densities, expected 4",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("heads.json", "[[1, 1], 1, 1, 1]")}, NULL);
    refused(DSV_E_FORMAT, "or null, found a string",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("word.json", "[1, 1, 1, \"all\"]")}, NULL);
    refused(DSV_E_FORMAT,
            "block 2: expected a density above 0, at most 1, an array of them, or null, "
            "found 1.5",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("more.json", "[1, 1, 1.5, 1]")}, NULL);
    refused(DSV_E_FORMAT, "no JSON from line 1, column 8 on",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("broken.json", "[1, 1, }")}, NULL);
    refused(DSV_E_FORMAT, "no JSON from line 2, column 1 on",
            (DsvPlanQuestion){.ranks = 2, .densities = write_text("twice.json", "[1, 1, 1, 1]\n[1]\n")},
            NULL);
}

/* Returns the line of the chosen setting, which begins with its value of `offload`. */
static const char *chosen_line(const Said *said)
{
    for (int i = 0; i < said->count && i < LINES_MAX; i++)
        if (strstr(said->line[i], "| chosen"))
            return said->line[i];
    fail_msg("no setting is chosen");
    return NULL;
}

/* A device with fast copies lets state and activations wait in host memory, one with slow copies computes
 * again. The same question has the same answer. */
static void test_memory(void **state)
{
    static const char FAST[] = "{\"tflops\": 1, \"memory_gbs\": 1000, \"link_gbs\": 100, \"host_gib\": 8}";
    static const char SLOW[] = "{\"tflops\": 1, \"memory_gbs\": 1000, \"link_gbs\": 9, \"host_gbs\": 0.002}";
    DsvConfig config;
    Said fast = {0}, slow = {0}, again = {0};
    (void)state;
    set_up(&config);
    assert_ok(dsv_config_set(&config, "train_batch_size=8"));
    DsvMemoryQuestion question = {.memory_gib = 0.28, .table = write_text("fast.json", FAST)};
    assert_ok(dsv_plan_memory(&question, &config, listen, &fast));
    assert_ok(dsv_plan_memory(&question, &config, listen, &again));
    question.table = write_text("slow.json", SLOW);
    assert_ok(dsv_plan_memory(&question, &config, listen, &slow));
    for (int i = 0; strstr(fast.line[i], "model") == NULL; i++)
        assert_string_equal(fast.line[i], again.line[i]);
    assert_memory_equal(chosen_line(&fast), "states+residual  | by block ", 28);
    assert_memory_equal(chosen_line(&slow), "none             | selective", 28);
}

static void memory_refused(DsvStatus status, const char *words, double gib, const char *table)
{
    DsvConfig config;
    set_up(&config);
    const DsvMemoryQuestion question = {.memory_gib = gib,
                                        .table = table ? write_text("device.json", table) : NULL};
    assert_fails(status, words, dsv_plan_memory(&question, &config, listen, &(Said){0}));
}

static void test_memory_refused(void **state)
{
    (void)state;
    memory_refused(DSV_E_USAGE, "the memory of the device is not given", 0, NULL);
    memory_refused(DSV_E_FORMAT, "device.json: expected a JSON object, found an array of 1", 1, "[1]");
    memory_refused(DSV_E_FORMAT, "device.json: speed is no key of a device", 1, "{\"speed\": 1}");
    memory_refused(DSV_E_FORMAT, "device.json: tflops: expected a number above 0, found -1", 1,
                   "{\"tflops\": -1}");
    memory_refused(DSV_E_FORMAT, "device.json: link_gbs is missing", 1, "{\"tflops\": 1, \"memory_gbs\": 1}");
    memory_refused(DSV_E_NO_MEMORY, " bytes are missing; the most goes to ", 0.001, NULL);
}

/* Training of all weights of the published 14B model with clips of 32,760 tokens. */
static void full_14b(DsvConfig *config)
{
    static const char *const OPTIONS[] = {"model.preset=wan14b",
                                          "codec.spatial_levels=3",
                                          "codec.temporal_levels=2",
                                          "num_frames=81",
                                          "height=480",
                                          "width=832",
                                          "train_batch_size=1",
                                          "mixed_precision=bf16",
                                          "sparse.enabled=false"};
    dsv_config_defaults(config);
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        assert_ok(dsv_config_set(config, OPTIONS[i]));
}

/* On a device and a host that lack memory the missing bytes are exact. */
static void test_memory_missing(void **state)
{
    static const double DEVICE = 139, HOST = 96, GIB = 1073741824.0;
    static const char TABLE[] =
        "{\"tflops\": 600, \"memory_gbs\": 4000, \"link_gbs\": 50, \"host_gib\": %.17g}";
    const char *at;
    char table[128];
    DsvConfig config;
    (void)state;
    full_14b(&config);
    unsigned long long missing = 0;
    for (int more = -1; more < 2; more++) { /* the host has the missing bytes, one less or one more */
        Said said = {0};
        double host = more < 0 ? HOST : HOST + ((double)missing + more - 1) / GIB;
        snprintf(table, sizeof table, TABLE, host);
        const DsvMemoryQuestion question = {.memory_gib = DEVICE, .table = write_text("host.json", table)};
        DsvStatus status = dsv_plan_memory(&question, &config, listen, &said);
        if (more == 1) {
            assert_ok(status);
            assert_memory_equal(chosen_line(&said), "states", 6);
            continue;
        }
        assert_fails(DSV_E_NO_MEMORY, "1 rank on this machine wants at least ", status);
        assert_non_null(strstr(dsv_error_message(), "; the most goes to optimizer "));
        at = strstr(dsv_error_message(), "GiB of its memory, and it has ");
        assert_non_null(at);
        at = strchr(at, ':');
        assert_non_null(at);
        missing = more < 0 ? strtoull(at + 1, NULL, 10) : missing;
        assert_int_equal(strtoull(at + 1, NULL, 10), more < 0 ? missing : 1);
        assert_true(missing > 0);
    }
}

/* Weights and gradients of 14B leave a device of 40 GiB. Without clipping gradients need no memory of the
 * host, and copies of the state hide behind the backward pass. */
static void test_memory_of_trained_weights(void **state)
{
    static const char LARGE[] =
        "{\"tflops\": 600, \"memory_gbs\": 4000, \"link_gbs\": 50, \"host_gib\": 300}";
    static const char SMALL[] =
        "{\"tflops\": 600, \"memory_gbs\": 4000, \"link_gbs\": 50, \"host_gib\": 110}";
    DsvConfig config;
    double host[2], seconds[2];
    DsvMemoryQuestion question = {.memory_gib = 40, .table = write_text("large.json", LARGE)};
    (void)state;
    full_14b(&config);
    for (int i = 0; i < 2; i++) {
        Said said = {0};
        assert_ok(dsv_config_set(&config, i == 0 ? "max_grad_norm=1" : "max_grad_norm=0"));
        assert_ok(dsv_plan_memory(&question, &config, listen, &said));
        const char *line = chosen_line(&said);
        assert_memory_equal(line, "weights", 7);
        assert_int_equal(sscanf(line, "%*[^|]|%*[^|]|%*[^|]|%*[^|]| %*f | %lf | %lf", &host[i], &seconds[i]),
                         2);
    }
    assert_true(host[1] < host[0] - 40 && seconds[1] < seconds[0]);
    question = (DsvMemoryQuestion){.memory_gib = 139, .table = write_text("small.json", SMALL)};
    Said fits = {0};
    assert_ok(dsv_plan_memory(&question, &config, listen, &fits));
    assert_ok(dsv_config_set(&config, "max_grad_norm=1"));
    assert_fails(DSV_E_NO_MEMORY, "1 rank on this machine wants at least ",
                 dsv_plan_memory(&question, &config, listen, &(Said){0}));
}

static bool says(const Said *said, const char *words)
{
    for (int i = 0; i < said->count && i < LINES_MAX; i++)
        if (strstr(said->line[i], words))
            return true;
    return false;
}

/* The memory of every card is known. Times are given only for cards whose speeds were measured. A card takes
 * the place of the device and leaves the options of the run as they are. */
static void test_memory_of_cards(void **state)
{
    const DsvCardInfo *card;
    DsvConfig config;
    size_t count = 0;
    (void)state;
    set_up(&config);
    for (; (card = dsv_card_info(count)); count++) {
        Said plan = {0}, run = {0};
        char title[64], wanted[128];
        const DsvMemoryQuestion question = {.card = card->name};
        snprintf(title, sizeof title, ", on %s", card->title);
        snprintf(wanted, sizeof wanted, "%s: %g GiB, of which", card->title, card->memory_gib);
        assert_ok(dsv_plan_memory(&question, &config, listen, &plan));
        assert_true(says(&plan, "offload          | recompute |"));
        assert_int_equal(says(&plan, "no times are given: the speeds of this card were not measured"),
                         !card->measured);
        assert_int_equal(strstr(chosen_line(&plan), "|        - | chosen") != NULL, !card->measured);
        assert_ok(dsv_train_preview_card(card->name, &config, listen, &run));
        assert_false(says(&run, "| recompute |"));
        assert_true(says(&run, wanted) && says(&run, title));
        assert_int_equal(dsv_train_preview_card("unknown", &config, listen, &run), DSV_E_USAGE);
        assert_non_null(strstr(strstr(dsv_error_message(), "expected one of "), card->name));
    }
    assert_in_range(count, 9, 100);
    Said said = {0};
    assert_ok(dsv_train_preview_card("rtx4090", &config, listen, &said));
    assert_true(says(&said, "it fits: ") && says(&said, " of 22.9 GiB"));
    full_14b(&config);
    assert_fails(DSV_E_NO_MEMORY, "GiB of device memory, of 22.9 there are 22.9 free: ",
                 dsv_train_preview_card("rtx4090", &config, listen, &(Said){0}));
    /* The host of a card is not known, so what helps by waiting there is named. */
    assert_ok(dsv_config_set(&config, "model.preset=wan1.3b"));
    assert_fails(DSV_E_NO_MEMORY, "offload=states",
                 dsv_train_preview_card("rtx3090", &config, listen, &(Said){0}));
    assert_fails(DSV_E_USAGE, "rtx 4090 is no card that dsv knows, expected one of rtx3090, rtx4090, ",
                 dsv_train_preview_card("rtx 4090", &config, listen, &(Said){0}));
    assert_fails(DSV_E_USAGE, "gpu is no card that dsv knows",
                 dsv_plan_memory(&(DsvMemoryQuestion){.card = "gpu"}, &config, listen, &(Said){0}));
    assert_fails(DSV_E_USAGE, "the table t.json and the card h100 are given, expected one of them",
                 dsv_plan_memory(&(DsvMemoryQuestion){.card = "h100", .table = "t.json"}, &config, listen,
                                 &(Said){0}));
}

/* Returns the predicted seconds of the line of the table that begins with `words` and names the place
 * `update`. */
static double seconds_of(const Said *said, const char *words, const char *update)
{
    char place[16];
    double seconds;
    for (int i = 0; i < said->count && i < LINES_MAX; i++)
        if (strncmp(said->line[i], words, strlen(words)) == 0 &&
            sscanf(said->line[i], "%*[^|]|%*[^|]|%*[^|]| %*d %15s | %*f | %*f | %lf", place, &seconds) == 2 &&
            strcmp(place, update) == 0)
            return seconds;
    return -1;
}

/* AdamW of the CPU is chosen if host memory is much faster than the link. Both times are in the table, and
 * the option leaves only one of them. */
static void test_memory_of_the_update(void **state)
{
    static const char TABLE[] =
        "{\"tflops\": 600, \"memory_gbs\": 4000, \"link_gbs\": 50, \"update_gbs\": 500%s}";
    static const struct {
        const char *more, *option, *chosen;
        bool device, host;
    } CASES[] = {
        {"", "offload_update=auto", "host ", true, true},
        {", \"host_gbs\": 120", "offload_update=auto", "device ", true, true}, /* at most host_gbs */
        {"", "offload_update=device", "device ", true, false},
        {", \"host_gbs\": 120", "offload_update=host", "host ", false, true},
        {"", "optimizer=muon", "device ", true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        DsvConfig config;
        Said said = {0};
        char table[160];
        snprintf(table, sizeof table, TABLE, CASES[i].more);
        full_14b(&config);
        assert_ok(dsv_config_set(&config, CASES[i].option));
        const DsvMemoryQuestion question = {.memory_gib = 139, .table = write_text("update.json", table)};
        assert_ok(dsv_plan_memory(&question, &config, listen, &said));
        double device = seconds_of(&said, "states ", "device"), host = seconds_of(&said, "states ", "host");
        assert_non_null(strstr(chosen_line(&said), CASES[i].chosen));
        assert_true((device > 0) == CASES[i].device && (host > 0) == CASES[i].host);
        if (device > 0 && host > 0)
            assert_true((host < device) == (CASES[i].chosen[0] == 'h'));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_measured_here),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_of_cards),
        cmocka_unit_test(test_memory_refused),
        cmocka_unit_test(test_memory_missing),
        cmocka_unit_test(test_memory_of_trained_weights),
        cmocka_unit_test(test_memory_of_the_update),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
