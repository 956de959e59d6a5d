/* Finds golden files and reads their descriptions. Every failure is a failed test. */
#include "golden/golden_files.h"

#include <unistd.h>

#include <cjson/cJSON.h>

#include "test.h"

static const char committed[] = DSV_GOLDEN_DIR;
static const char *root = committed;

const char *golden_path(const char *relative)
{
    static char path[8][1024];
    static int next;
    char *out = path[next++ % 8];
    snprintf(out, sizeof path[0], "%s/%s", root, relative);
    return out;
}

/* fixture.json of a folder, to be deleted by the caller. */
static cJSON *read_description(const char *folder)
{
    char relative[2 * GOLDEN_NAME];
    static char text[1 << 16];
    snprintf(relative, sizeof relative, "%s/fixture.json", folder);
    FILE *file = fopen(golden_path(relative), "rb");
    if (!file)
        fail_msg("%s is missing", golden_path(relative));
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    cJSON *description = cJSON_Parse(text);
    assert_non_null(description);
    return description;
}

int golden_run(const char *folder, int (*run)(void))
{
    int status = run();
    if (status != 0)
        return status;
    root = DSV_SHARED_DIR "/fixtures";
    FILE *probe = fopen(golden_path(folder), "rb");
    if (probe) {
        fclose(probe);
        printf("once more, with the golden files of %s\n", root);
        status = run();
    }
    root = committed;
    return status;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!found)
        fail_msg("fixture.json lacks %s", name);
    return found;
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *found = member(object, name);
    assert_true(cJSON_IsNumber(found));
    return found->valuedouble;
}

int golden_cases(const char *folder, char name[GOLDEN_CASES_MAX][GOLDEN_NAME])
{
    cJSON *description = read_description(folder);
    const cJSON *item;
    int count = 0;
    cJSON_ArrayForEach(item, member(description, "cases")) {
        assert_true(count < GOLDEN_CASES_MAX);
        snprintf(name[count++], GOLDEN_NAME, "%s", item->string);
    }
    cJSON_Delete(description);
    assert_true(count > 0);
    return count;
}

static void fill_case(GoldenDit *c, const char *model, const cJSON *item)
{
    const cJSON *image_len = cJSON_GetObjectItemCaseSensitive(item, "image_len");
    const cJSON *thw = member(item, "latent_thw"), *bf16 = member(item, "bf16_autocast_against_f32");
    assert_int_equal(cJSON_GetArraySize(thw), 3);
    *c = (GoldenDit){
        .batch = (int64_t)number(item, "batch"),
        .frames = (int64_t)cJSON_GetArrayItem(thw, 0)->valuedouble,
        .height = (int64_t)cJSON_GetArrayItem(thw, 1)->valuedouble,
        .width = (int64_t)cJSON_GetArrayItem(thw, 2)->valuedouble,
        .text_len = (int64_t)number(item, "text_len"),
        .given_first = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "given_first")),
        .image_len = image_len ? (int64_t)image_len->valuedouble : 0,
        .bf16_output = number(bf16, "output_rel_l2"),
        .bf16_dlatents = number(bf16, "grad_hidden_states_rel_l2"),
        .bf16_worst_grad = number(bf16, "worst_param_grad_rel_l2"),
    };
    snprintf(c->model, sizeof c->model, "%s", model);
    snprintf(c->name, sizeof c->name, "%s", item->string);
}

int golden_dit_cases(GoldenDit cases[GOLDEN_CASES_MAX])
{
    static const char *const model[] = {"dit_a", "dit_c", "dit_i2v", "dit_clip", "dit_flf", "dit_ti2v"};
    int count = 0;
    for (size_t m = 0; m < sizeof model / sizeof *model; m++) {
        if (root != committed && access(golden_path(model[m]), F_OK) != 0)
            continue; /* other golden files may be of fewer models */
        cJSON *description = read_description(model[m]);
        const cJSON *item;
        cJSON_ArrayForEach(item, member(description, "cases")) {
            assert_true(count < GOLDEN_CASES_MAX);
            fill_case(&cases[count++], model[m], item);
        }
        cJSON_Delete(description);
    }
    assert_true(count >= 2);
    return count;
}
