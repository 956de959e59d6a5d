/* Options: the table, YAML, assignments, and the message for each mistake. */
#include "dsv/config.h"

#include "scratch.h"

static DsvConfig *config; /* has the defaults when a test begins */

static int make_config(void **state)
{
    (void)state;
    if (!config)
        config = malloc(sizeof *config); /* on the heap, so that the sanitizer sees overruns */
    if (config)
        dsv_config_defaults(config);
    return config ? 0 : 1;
}

static const char *yaml_file(const char *text, size_t bytes)
{
    const char *path = scratch_path("settings.yaml");
    assert_ok(dsvi_file_write(path, text, bytes));
    return path;
}

static const char *yaml(const char *text)
{
    return yaml_file(text, strlen(text));
}

static void defaults_are_those_of_the_table(void **state)
{
    (void)state;
#define DSV_INT(key, field, initial, least, most, unit, help) \
    assert_true(config->field == (initial) && config->field >= (least) && config->field <= (most));
#define DSV_FLOAT(key, field, initial, least, most, unit, help) \
    assert_true(config->field == (initial) && config->field >= (least) && config->field <= (most));
#define DSV_BOOL(key, field, initial, help) assert_int_equal(config->field, initial);
#define DSV_TEXT(key, field, initial, help) assert_string_equal(config->field, initial);
#define DSV_CHOICE(key, field, initial, choices, help) assert_string_equal(config->field, initial);
#include "dsv/options.def"
}

/* Each option accepts its default and its bounds, and its description is complete. */
static void every_row_is_sound(void **state)
{
    char assignment[DSV_TEXT_MAX + 128], before[128] = "";
    (void)state;
    assert_true(dsv_option_count() > 60);
    assert_null(dsv_option_info(dsv_option_count()));
    for (size_t i = 0; i < dsv_option_count(); i++) {
        const DsvOptionInfo *info = dsv_option_info(i);
        assert_true(info->section[0] && info->section_text[0] && info->key[0] && info->help[0]);
        assert_true(strlen(info->key) < 64);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(info->key, dsv_option_info(j)->key);
        snprintf(assignment, sizeof assignment, "%s=%s", info->key, info->initial);
        assert_ok(dsv_config_set(config, assignment));
        if (strcmp(info->type, "integer") == 0 || strcmp(info->type, "number") == 0) {
            char bound[2][64];
            assert_int_equal(sscanf(info->range, "%63s to %63s", bound[0], bound[1]), 2);
            for (int b = 0; b < 2; b++) {
                snprintf(assignment, sizeof assignment, "%s=%s", info->key, bound[b]);
                assert_ok(dsv_config_set(config, assignment));
            }
        } else {
            assert_string_equal(info->range, "");
        }
        if (strchr(info->type, '|')) {
            char choices[512];
            snprintf(choices, sizeof choices, "%s", info->type);
            for (char *choice = strtok(choices, "|"); choice; choice = strtok(NULL, "|")) {
                assert_true(strlen(choice) < DSV_CHOICE_MAX);
                snprintf(assignment, sizeof assignment, "%s=%s", info->key, choice);
                assert_ok(dsv_config_set(config, assignment));
            }
        }
        if (strcmp(before, info->section) != 0) /* options of a section are adjacent */
            for (size_t j = 0; j < i; j++)
                assert_string_not_equal(dsv_option_info(j)->section, info->section);
        snprintf(before, sizeof before, "%s", info->section);
    }
}

static void info_says_what_the_table_says(void **state)
{
    const DsvOptionInfo *found = NULL;
    (void)state;
    for (size_t i = 0; i < dsv_option_count(); i++)
        if (strcmp(dsv_option_info(i)->key, "sparse.target_density") == 0)
            found = dsv_option_info(i);
    assert_non_null(found);
    assert_string_equal(found->section, "Sparse attention");
    assert_string_equal(found->type, "number");
    assert_string_equal(found->initial, "0.05");
    assert_string_equal(found->range, "0 to 1");
    assert_string_equal(dsv_option_info(0)->section, "Run");
    assert_string_equal(dsv_option_info(0)->key, "output_dir");
    assert_string_equal(dsv_option_info(0)->type, "text");
    assert_string_equal(dsv_option_info(0)->initial, "runs/run");
}

static void assignments_of_every_type(void **state)
{
    (void)state;
    assert_ok(dsv_config_set(config, "seed=9007199254740992"));
    assert_true(config->seed == INT64_C(9007199254740992));
    assert_ok(dsv_config_set(config, "logit_mean=-2.5e-1"));
    assert_true(config->logit_mean == -0.25);
    assert_ok(dsv_config_set(config, "sparse.enabled=false"));
    assert_false(config->sparse_enabled);
    assert_ok(dsv_config_set(config, "sparse.enabled=true"));
    assert_true(config->sparse_enabled);
    assert_ok(dsv_config_set(config, "device=cuda"));
    assert_string_equal(config->device, "cuda");
    assert_ok(dsv_config_set(config, "output_dir=a=b, 'c' # d: é"));
    assert_string_equal(config->output_dir, "a=b, 'c' # d: é");
    assert_ok(dsv_config_set(config, "output_dir="));
    assert_string_equal(config->output_dir, "");
}

static void assignments_that_are_refused(void **state)
{
    static const struct {
        const char *assignment, *words;
    } wrong[] = {
        {"", "expected key=value"},
        {"lr", "lr: expected key=value"},
        {"=1", "=1: expected key=value"},
        {"num_frame=5", "unknown key num_frame, the nearest is num_frames"},
        {"--lr=5", "unknown key --lr, the nearest is lr"},
        {"sparse.gruop=64", "unknown key sparse.gruop, the nearest is sparse.group"},
        {"target_mass=0.5", "unknown key target_mass, the nearest is sparse.target_mass"},
        {"train.warmup_steps=5", "unknown key train.warmup_steps, the nearest is warmup_steps"},
        {"Sampler=euler", "unknown key Sampler, the nearest is sampler"},
        {"lr =1", "unknown key lr , the nearest is lr"},
        {"sparse.wamup=1", "unknown key sparse.wamup; keys with that word: warmup_steps, "
                           "sparse.warmup_steps"},
        {"sparse.densty=1", "unknown key sparse.densty; keys with that word: sparse.target_density, "
                            "sparse.max_density"},
        {"heads=1", "unknown key heads; keys with that word: cp_heads, model.num_attention_heads"},
        {"xyzzy=1", "unknown key xyzzy; dsv help options lists all keys"},
        {"learning_rate=1", "unknown key learning_rate: dsv calls it lr"},
        {"Batch-Size=1", "unknown key Batch-Size: dsv calls it train_batch_size"},
        {"lora_rank=-1", "lora_rank is '-1', expected an integer from 0 to 4096"},
        {"network_dim=1", "unknown key network_dim: dsv calls it lora_rank"},
        {"adapter.rank=1", "unknown key adapter.rank: dsv calls it lora_rank"},
        {"optimizer.betas=1", "unknown key optimizer.betas: dsv calls it adam_beta1 and adam_beta2"},
        {"num_frames=0", "num_frames is '0', expected an integer from 1 to 100000 (frames)"},
        {"num_frames=100001", "num_frames is '100001', expected an integer from 1 to 100000 (frames)"},
        {"num_frames=many", "num_frames is 'many', expected an integer"},
        {"num_frames=", "num_frames is empty, expected an integer"},
        {"num_frames=5x", "num_frames is '5x'"},
        {"num_frames= 5", "num_frames is ' 5'"},
        {"num_frames=5 ", "num_frames is '5 '"},
        {"num_frames=+5", "num_frames is '+5'"},
        {"num_frames=5.0", "num_frames is '5.0'"},
        {"num_frames=1e2", "num_frames is '1e2'"},
        {"num_frames=0x10", "num_frames is '0x10'"},
        {"num_frames=-", "num_frames is '-'"},
        {"num_frames=-5", "num_frames is '-5'"},
        {"num_frames=99999999999999999999", "num_frames is '99999999999999999999'"},
        {"seed=9007199254740993",
         "seed is '9007199254740993', expected an integer from 0 to 9007199254740992"},
        {"lr=-1e-4", "lr is '-1e-4', expected a number from 0 to 10"},
        {"lr=nan", "lr is 'nan', expected a number from 0 to 10"},
        {"lr=inf", "lr is 'inf'"},
        {"lr=1e999", "lr is '1e999'"},
        {"lr=0x1p-3", "lr is '0x1p-3'"},
        {"lr=1e-4x", "lr is '1e-4x'"},
        {"lr=1,5", "lr is '1,5'"},
        {"adam_epsilon=0", "adam_epsilon is '0', expected a number from 1e-30 to 1"},
        {"lr=", "lr is empty, expected a number"},
        {"fps=0", "fps is '0', expected a number from 0.01 to 1000 (frames/s)"},
        {"sparse.enabled=yes", "sparse.enabled is 'yes', expected true or false"},
        {"sparse.enabled=1", "sparse.enabled is '1', expected true or false"},
        {"sparse.enabled=True", "sparse.enabled is 'True', expected true or false"},
        {"sparse.enabled=", "sparse.enabled is empty, expected true or false"},
        {"device=gpu", "device is 'gpu', expected one of cpu, cuda"},
        {"device=cpu|cuda", "device is 'cpu|cuda', expected one of cpu, cuda"},
        {"device=cp", "device is 'cp', expected one of cpu, cuda"},
        {"device=", "device is empty, expected one of cpu, cuda"},
        {"output_dir=\xff", "output_dir is not UTF-8, expected text, at most 1023 bytes of UTF-8"},
    };
    DsvConfig before = *config;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_fails(DSV_E_USAGE, wrong[i].words, dsv_config_set(config, wrong[i].assignment));
        assert_memory_equal(config, &before, sizeof before);
    }
}

static void long_texts_and_keys(void **state)
{
    static char assignment[5000] = "output_dir=";
    (void)state;
    memset(assignment + 11, 'x', DSV_TEXT_MAX - 1);
    assert_ok(dsv_config_set(config, assignment));
    assert_int_equal(strlen(config->output_dir), DSV_TEXT_MAX - 1);
    assignment[11 + DSV_TEXT_MAX - 1] = 'y';
    assert_fails(DSV_E_USAGE, "output_dir is text of 1024 bytes, expected text, at most 1023 bytes",
                 dsv_config_set(config, assignment));
    memset(assignment, 'k', sizeof assignment - 2);
    assert_fails(DSV_E_USAGE, "expected key=value", dsv_config_set(config, assignment));
    assignment[sizeof assignment - 2] = '=';
    assert_fails(DSV_E_USAGE, "unknown key kkkk", dsv_config_set(config, assignment));
    memset(assignment, 'v', sizeof assignment - 1);
    memcpy(assignment, "lr=", 3);
    assert_fails(DSV_E_USAGE, "v'..., expected a number from 0 to 10", dsv_config_set(config, assignment));
}

static void yaml_nested_and_dotted(void **state)
{
    (void)state;
    assert_ok(dsv_config_load(config, yaml("# a comment\n"
                                           "num_frames: 33\n"
                                           "lr: 1.0e-3 # another\n"
                                           "sparse:\n"
                                           "  group: 64\n"
                                           "  enabled: false\n"
                                           "  selector: \"pooled\"\n"
                                           "sparse.rank: 8\n"
                                           "data: {path: 'it''s here', random_crop: false}\n"
                                           "codec:\n" /* a group without any option */
                                           "output_dir: 'tab\\'\n"
                                           "resume_from_checkpoint: null\n")));
    assert_int_equal(config->num_frames, 33);
    assert_true(config->lr == 1e-3);
    assert_int_equal(config->sparse_group, 64);
    assert_false(config->sparse_enabled);
    assert_string_equal(config->sparse_selector, "pooled");
    assert_int_equal(config->sparse_rank, 8);
    assert_string_equal(config->data_path, "it's here");
    assert_false(config->data_random_crop);
    assert_string_equal(config->output_dir, "tab\\");
    assert_string_equal(config->resume_from_checkpoint, "");
    assert_int_equal(config->height, 128); /* not in the file: unchanged */
}

/* A file for a LoRA has the learning rate of a LoRA: arguments change the rank, but do not take it away. */
static void rank_0_over_a_file_for_a_lora(void **state)
{
    static const char *const NONE[] = {"lora_rank=0"}, *const OTHER[] = {"lora_rank=0", "lora_rank=8"};
    (void)state;
    assert_ok(dsv_config_set_all(config, NONE, 1)); /* the file names no rank */
    assert_ok(dsv_config_load(config, yaml("lora_rank: 32\n")));
    assert_fails(
        DSV_E_USAGE,
        "lora_rank=0: the file sets lora_rank=32 and is for a LoRA, expected 1 or more; to train all "
        "weights, use a file without lora_rank, such as configs/wan_full.yaml",
        dsv_config_set_all(config, NONE, 1));
    assert_ok(dsv_config_load(config, yaml("lora_rank: 32\n")));
    assert_ok(dsv_config_set_all(config, OTHER, 2));
    assert_int_equal(config->lora_rank, 8);
}

static void yaml_of_texts(void **state)
{
    static const struct {
        const char *yaml, *value;
    } text[] = {
        {"output_dir: ~\n", ""},
        {"output_dir:\n", ""},
        {"output_dir: '~'\n", "~"},
        {"output_dir: \"null\"\n", "null"},
        {"output_dir: 12\n", "12"},
        {"output_dir: true\n", "true"},
        {"output_dir: |\n  two\n  lines\n", "two\nlines\n"},
        {"output_dir: \"\\u00e9\\t\\x41\"\n", "é\tA"},
        {"output_dir: a b\n  c\n", "a b c"},
        {"\xef\xbb\xbfoutput_dir: behind a byte order mark\n", "behind a byte order mark"},
        {"output_dir: dos\r\n", "dos"},
        {"--- \noutput_dir: one document\n...\n", "one document"},
        {"%YAML 1.1\n---\noutput_dir: with a directive\n", "with a directive"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        assert_ok(dsv_config_load(config, yaml(text[i].yaml)));
        assert_string_equal(config->output_dir, text[i].value);
    }
}

static void yaml_that_sets_nothing(void **state)
{
    static const char *const text[] = {"",      "\n\n",      "# only a comment\n", "{}",
                                       "---\n", "sparse:\n", "sparse: {}\n"};
    DsvConfig before = *config;
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        assert_ok(dsv_config_load(config, yaml(text[i])));
    assert_memory_equal(config, &before, sizeof before);
}

static void yaml_that_is_refused(void **state)
{
    static const struct {
        const char *yaml, *words;
        DsvStatus status;
    } wrong[] = {
        {"lr: 1\nnum_frame: 5\n", ".yaml:2: unknown key num_frame, the nearest is num_frames", DSV_E_USAGE},
        {"sparse:\n  group: 64\n  grop: 5\n", ".yaml:3: unknown key sparse.grop, the nearest is sparse.group",
         DSV_E_USAGE},
        {"sparce:\n  group: 64\n", ".yaml:1: unknown key sparce, the nearest is the group sparse",
         DSV_E_USAGE},
        {"sparce: {}\n", ".yaml:1: unknown key sparce", DSV_E_USAGE},
        {"'': 1\n", ".yaml:1: unknown key ", DSV_E_USAGE},
        {"? \n: 1\n", ".yaml:1: unknown key ", DSV_E_USAGE},
        {"\n\nlr: many\n", ".yaml:3: lr is 'many', expected a number from 0 to 10", DSV_E_USAGE},
        {"lr:\n", ".yaml:1: lr is empty, expected a number from 0 to 10", DSV_E_USAGE},
        {"lr: [1, 2]\n", ".yaml:1: lr is a sequence, expected a number from 0 to 10", DSV_E_USAGE},
        {"lr:\n  - 1\n", ".yaml:1: lr is a sequence", DSV_E_USAGE},
        {"device: {name: cpu}\n", ".yaml:1: device is a mapping, expected one of cpu, cuda", DSV_E_USAGE},
        {"sparse: true\n", ".yaml:1: sparse is a group of options, such as sparse.enabled", DSV_E_USAGE},
        {"sparse: [a]\n", ".yaml:1: sparse is a group of options", DSV_E_USAGE},
        {"sparse.enabled: no\n", ".yaml:1: sparse.enabled is 'no', expected true or false", DSV_E_USAGE},
        {"height: 4\n", ".yaml:1: height is '4', expected an integer from 8 to 16384 (pixels)", DSV_E_USAGE},
        {"lr: 1\nfps: 3\nlr: 1\n", ".yaml:3: lr is set a second time, first on line 1", DSV_E_USAGE},
        {"sparse:\n  rank: 8\nsparse.rank: 8\n", ".yaml:3: sparse.rank is set a second time, first on line 2",
         DSV_E_USAGE},
        {"sparse:\n  rank: 8\nsparse:\n  group: 64\n",
         ".yaml:3: sparse is set a second time, first on line 1", DSV_E_USAGE},
        {"- lr\n", ".yaml:1: expected lines of key: value", DSV_E_USAGE},
        {"lr\n", ".yaml:1: expected lines of key: value", DSV_E_USAGE},
        {"? [a, b]\n: 1\n", ".yaml:1: a key must be a word", DSV_E_USAGE},
        {"{a: 1}: 2\n", ".yaml:1: a key must be a word", DSV_E_USAGE},
        {"lr: 1\n---\nfps: 2\n", ".yaml:2: a second YAML document is not supported", DSV_E_USAGE},
        {"lr: &here 1\n", ".yaml:1: YAML anchors and tags are not supported", DSV_E_USAGE},
        {"sparse: &here\n  rank: 8\n", ".yaml:1: YAML anchors and tags are not supported", DSV_E_USAGE},
        {"&key lr: 1\n", ".yaml:1: YAML anchors and tags are not supported", DSV_E_USAGE},
        {"lr: *here\n", ".yaml:1: YAML aliases are not supported", DSV_E_USAGE},
        {"<<: *here\n", ".yaml:1: YAML aliases are not supported", DSV_E_USAGE},
        {"lr: !!float 1\n", ".yaml:1: YAML anchors and tags are not supported", DSV_E_USAGE},
        {"sparse: !group {rank: 8}\n", ".yaml:1: YAML anchors and tags are not supported", DSV_E_USAGE},
        {"\"l\\0r\": 1\n", ".yaml:1: a zero byte in a value or key", DSV_E_USAGE},
        {"output_dir: \"a\\0b\"\n", ".yaml:1: a zero byte in a value or key", DSV_E_USAGE},
        {"lr: 1\n}\n", ":2: not YAML: ", DSV_E_FORMAT},
        {"lr: 1\n\tfps: 2\n", ":2: not YAML: ", DSV_E_FORMAT},
        {"data:\n  path: a\n width: 8\n", ":3: not YAML: ", DSV_E_FORMAT},
        {"lr: \"1\n", ":2: not YAML: ", DSV_E_FORMAT},
        {"lr: 1\nfps: \xff\n", ":2: not YAML: ", DSV_E_FORMAT},
        {"output_dir: a\x01\n", ":1: not YAML: ", DSV_E_FORMAT},
        {"%YAML 3.0\n---\nlr: 1\n", ":1: not YAML: ", DSV_E_FORMAT},
        {"{{{{{{{{{{", ".yaml:1: a key must be a word", DSV_E_USAGE},
    };
    DsvConfig before = *config;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *path = yaml(wrong[i].yaml);
        assert_fails(wrong[i].status, wrong[i].words, dsv_config_load(config, path));
        assert_non_null(strstr(dsv_error_message(), path));
        assert_memory_equal(config, &before, sizeof before); /* nor by the lines before */
    }
}

static void files_that_are_refused(void **state)
{
    enum { LARGE = (1 << 20) + 1 };
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere.yaml: cannot read its attributes: No such file",
                 dsv_config_load(config, scratch_path("nowhere.yaml")));
    assert_fails(DSV_E_IO, "not a regular file", dsv_config_load(config, scratch_folder));
    char *text = malloc(LARGE);
    assert_non_null(text);
    memset(text, '#', LARGE);
    assert_fails(DSV_E_FORMAT, "1048577 bytes, expected at most 1048576",
                 dsv_config_load(config, yaml_file(text, LARGE)));
    assert_ok(dsv_config_load(config, yaml_file(text, LARGE - 1)));
    memset(text, '{', LARGE); /* nested as deeply as the file is long */
    assert_int_not_equal(dsv_config_load(config, yaml_file(text, LARGE - 1)), DSV_OK);
    memset(text, 'k', LARGE); /* one key without a value */
    memcpy(text + 500, ": 1", 4);
    assert_fails(DSV_E_USAGE, "unknown key kkkk", dsv_config_load(config, yaml(text)));
    free(text);
}

/* Texts that a YAML reader would change or refuse if they were not quoted. */
static void saved_settings_load_to_the_same_bytes(void **state)
{
    static const char *const text[] = {
        "",
        "plain",
        " blanks ",
        "it's \"quoted\"",
        "back\\slash\\n",
        "a: b # c",
        "- x",
        "~",
        "null",
        "true",
        "*a &b !c",
        "line\nbreak\r\n",
        "tab\t",
        "\x01\x1b\x7f",
        "é漢😀",
        "\u00a0\xc2\x85\u2028\u2029",
        "\ufeff\ufffe\uffff",
        "\U0010ffff\U0001fffe",
        "{[",
        "%YAML",
        "---\n...",
        "at \u2028 breaks \u2029 \xc2\x85 all",
        "\xc2\x86\xc2\x9f",
    };
    const char *path = scratch_path("saved.yaml");
    DsvConfig loaded;
    char assignment[256];
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        snprintf(assignment, sizeof assignment, "output_dir=%s", text[i]);
        assert_ok(dsv_config_set(config, assignment));
        snprintf(assignment, sizeof assignment, "lr=%.17g", 1.0 / (double)(i + 3));
        assert_ok(dsv_config_set(config, assignment));
        assert_ok(dsv_config_set(config, i % 2 ? "device=cuda" : "device=cpu"));
        assert_ok(dsv_config_set(config, i % 2 ? "sparse.enabled=true" : "sparse.enabled=false"));
        assert_ok(dsv_config_save(config, path));
        dsv_config_defaults(&loaded);
        assert_ok(dsv_config_load(&loaded, path));
        assert_string_equal(loaded.output_dir, text[i]);
        assert_memory_equal(&loaded, config, sizeof loaded);
    }
}

static void saved_settings_have_their_sections(void **state)
{
    const char *path = scratch_path("sections.yaml");
    char *text;
    size_t bytes;
    (void)state;
    assert_ok(dsv_config_save(config, path));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    const char *at = text;
    for (size_t i = 0; i < dsv_option_count(); i++) {
        const DsvOptionInfo *info = dsv_option_info(i);
        char line[256];
        if (i == 0 || strcmp(info->section, dsv_option_info(i - 1)->section) != 0) {
            snprintf(line, sizeof line, "# %s\n%s: ", info->section, info->key);
        } else {
            snprintf(line, sizeof line, "\n%s: ", info->key);
        }
        at = strstr(at, line); /* in the order of the table */
        if (!at)
            fail_msg("no '%s' where it belongs", line);
    }
    free(text);
    assert_fails(DSV_E_NOT_FOUND, "nowhere/settings.yaml",
                 dsv_config_save(config, scratch_path("nowhere/settings.yaml")));
}

/* Hints for option names of other trainers: each hint names only existing options, and no hint is for an
 * existing option of dsv. */
static void hints_are_sound(void **state)
{
    static const char CALLED[] = "dsv calls it ";
    const char *name, *hint;
    (void)state;
    for (size_t i = 0; (name = dsv_option_hint_name(i)); i++) {
        hint = dsv_option_hint(name);
        assert_non_null(hint);
        bool known = strncmp(hint, CALLED, sizeof CALLED - 1) != 0; /* explains why dsv has none */
        for (size_t j = 0; j < dsv_option_count(); j++) {
            const char *key = dsv_option_info(j)->key, *at = hint + sizeof CALLED - 1;
            assert_string_not_equal(name, key);
            known |= strncmp(at, key, strlen(key)) == 0 && strchr(", ", at[strlen(key)]);
        }
        if (!known)
            fail_msg("%s: %s: there is no such key", name, hint);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(name, dsv_option_hint_name(j));
    }
    assert_string_equal(dsv_option_hint("--network-dim"), dsv_option_hint("lora"));
    assert_null(dsv_option_hint("lr"));
}

static const char *one_of(const void *names, size_t index)
{
    return ((const char *const *)names)[index];
}

static void nearest_name_is_a_slip_or_none(void **state)
{
    static const char *const names[] = {"train", "sample", "forward", NULL};
    (void)state;
    assert_string_equal(dsv_nearest("trian", one_of, names), "train");
    assert_string_equal(dsv_nearest("sampel", one_of, names), "sample");
    assert_string_equal(dsv_nearest("foward", one_of, names), "forward");
    assert_null(dsv_nearest("banana", one_of, names));
    assert_null(dsv_nearest("", one_of, names));
}

#define TEST(name) cmocka_unit_test_setup(name, make_config)

/* A program compiled with another version's DsvConfig, or one that never called dsv_config_defaults. */
static void another_size_is_refused(void **state)
{
    DsvConfig other = {0};
    (void)state;
    assert_fails(DSV_E_USAGE, "the DsvConfig passed has 0 bytes", dsv_config_set(&other, "seed=1"));
    dsv_config_defaults_sized(&other, 64);
    assert_int_equal(other.bytes, 64);
    assert_int_equal(other.max_train_steps, 0); /* nothing after the size was written */
    assert_fails(DSV_E_USAGE, "has 64 bytes", dsv_config_load(&other, "no-such-file"));
    assert_fails(DSV_E_USAGE, "has 64 bytes", dsv_config_save(&other, "no-such-folder/file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_size_is_refused),
        TEST(defaults_are_those_of_the_table),
        TEST(every_row_is_sound),
        TEST(info_says_what_the_table_says),
        TEST(assignments_of_every_type),
        TEST(assignments_that_are_refused),
        TEST(long_texts_and_keys),
        TEST(yaml_nested_and_dotted),
        TEST(rank_0_over_a_file_for_a_lora),
        TEST(yaml_of_texts),
        TEST(yaml_that_sets_nothing),
        TEST(yaml_that_is_refused),
        TEST(files_that_are_refused),
        TEST(saved_settings_load_to_the_same_bytes),
        TEST(saved_settings_have_their_sections),
        TEST(hints_are_sound),
        TEST(nearest_name_is_a_slip_or_none),
    };
    int failed = cmocka_run_group_tests(tests, scratch_make, scratch_remove);
    free(config);
    return failed;
}
