/* Lists of sizes, and the size of a clip. */
#include "data/clip_sizes.h"

#include "test.h"

static void a_list_is_sorted_and_has_no_duplicates(void **state)
{
    (void)state;
    DsviClipSizes sizes;
    char text[DSVI_CLIP_SIZE_BYTES];
    assert_ok(dsvi_clip_sizes_parse("1x480x832, 81x480x832 ,17x480x480,1x480x832", &sizes));
    assert_int_equal(sizes.count, 3);
    assert_string_equal(dsvi_clip_size_text(&sizes.at[0], text), "81x480x832");
    assert_string_equal(dsvi_clip_size_text(&sizes.at[1], text), "17x480x480");
    assert_string_equal(dsvi_clip_size_text(&sizes.at[2], text), "1x480x832");
    const DsviClipSteps wan = {4, 16};
    assert_int_equal(dsvi_clip_size_tokens(&sizes.at[0], &wan), 21 * 30 * 52);
    assert_int_equal(dsvi_clip_size_tokens(&sizes.at[2], &wan), 30 * 52);
}

static void what_is_no_size_is_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = {
        "",           "81x480",          "81x480x832x1",      "0x480x832",
        "81x480x0",   "81 x480x832",     "-1x480x832",        "81x480x832,",
        "81*480*832", "81x480x99999999", "81x480x832,,1x8x8", "99999999999999999999x8x8"};
    DsviClipSizes sizes;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        assert_fails(DSV_E_USAGE, "is no size, expected frames x height x width like 81x480x832",
                     dsvi_clip_sizes_parse(BAD[i], &sizes));
}

static int64_t chosen(const char *list, int64_t width, int64_t height, int64_t frames, char *reason)
{
    DsviClipSizes sizes;
    const DsviClipInfo info = {.width = width, .height = height};
    assert_ok(dsvi_clip_sizes_parse(list, &sizes));
    reason[0] = 0;
    int64_t at = dsvi_clip_sizes_choose(&sizes, "a.mp4", &info, frames, reason, 256);
    assert_true((at < 0) == (reason[0] != 0));
    return at;
}

static void a_clip_goes_to_the_size_that_it_fills_best(void **state)
{
    (void)state;
    static const char LIST[] = "81x480x832,81x832x480,33x480x832,1x480x832,1x480x480";
    char reason[256];
    /* in the order of the list: 81x480x832, 81x832x480, 33x480x832, 1x480x832, 1x480x480 */
    int64_t wide = chosen(LIST, 1280, 720, 100, reason);
    assert_int_equal(chosen(LIST, 832, 480, 81, reason), wide);
    assert_int_equal(chosen(LIST, 720, 1280, 81, reason), 1 - wide);
    assert_int_equal(chosen(LIST, 1280, 720, 80, reason), 2);
    assert_int_equal(chosen(LIST, 1280, 720, 32, reason), 3);
    assert_int_equal(chosen(LIST, 600, 600, 1, reason), 4);
    /* 16:9 differs from 832:480 by 3 %, so that more frames decide */
    assert_int_equal(chosen("17x720x1280,81x480x832", 1920, 1080, 100, reason), 0);
    assert_int_equal(chosen("17x720x1280,81x480x832", 1920, 1080, 80, reason), 1);
    assert_int_equal(chosen("17x240x416,17x480x832", 1920, 1080, 80, reason), 0);
    assert_int_equal(chosen("17x240x416,17x480x832", 800, 450, 80, reason), 1);
}

static void a_clip_without_a_size_is_explained(void **state)
{
    (void)state;
    char reason[256];
    assert_int_equal(chosen("81x480x832,33x480x832", 832, 480, 32, reason), -1);
    assert_string_equal(reason, "a.mp4: 32 frames, shorter than every bucket, the shortest has 33");
    assert_int_equal(chosen("81x480x832,33x240x416", 832, 239, 100, reason), -1);
    assert_string_equal(reason, "a.mp4: 100 frames of 239 x 832 (height x width) fill no bucket without "
                                "enlarging them, the smallest is 33x240x416");
}

/* Whatever the clip, a size found automatically is supported, within the limits and not larger than the clip;
 * a clip at the limits gets them. */
static void automatic_sizes_keep_to_clip_and_budget(void **state)
{
    (void)state;
    const DsviClipSteps wan = {4, 16};
    const DsviClipSize limit = {81, 480, 832};
    int found = 0;
    for (int64_t width = 16; width < 2000; width += 47)
        for (int64_t height = 16; height < 1200; height += 53)
            for (int64_t frames = 1; frames < 130; frames += 7) {
                const DsviClipInfo info = {.width = width, .height = height};
                DsviClipSize size = dsvi_clip_size_auto(&info, frames, &wan, &limit, 20000);
                if (size.frames == 0)
                    continue;
                found++;
                assert_true(size.frames <= frames && size.frames <= 81 && size.height <= height &&
                            size.width <= width);
                assert_true(size.frames % 4 == 1 && size.height % 16 == 0 && size.width % 16 == 0);
                assert_true(size.height * size.width <= 480 * 832);
                assert_true(dsvi_clip_size_tokens(&size, &wan) <= 20000);
                assert_true(frames < 5 || size.frames * 2 > (frames < 81 ? frames : 81));
            }
    assert_true(found > 10000);
    const DsviClipInfo square = {.width = 640, .height = 640}, tiny = {.width = 15, .height = 640};
    /* clips of the shape of num_frames x height x width, upright or not, are not cropped or made smaller */
    DsviClipSize size = dsvi_clip_size_auto(&square, 200, &wan, &limit, 32760);
    assert_true(size.frames == 81 && size.height == 624 && size.width == 624);
    assert_int_equal(dsvi_clip_size_auto(&tiny, 200, &wan, &limit, 32760).frames, 0);
    static const int64_t CLIPS[][4] = {{480, 832, 480, 832},   {832, 480, 832, 480}, {720, 1280, 480, 832},
                                       {1080, 1920, 480, 832}, {400, 832, 304, 624}, {2000, 1000, 880, 432}};
    for (size_t i = 0; i < sizeof CLIPS / sizeof *CLIPS; i++) {
        const DsviClipInfo clip = {.height = CLIPS[i][0], .width = CLIPS[i][1]};
        size = dsvi_clip_size_auto(&clip, 200, &wan, &limit, 32760);
        assert_true(size.frames == 81 && size.height == CLIPS[i][2] && size.width == CLIPS[i][3]);
    }
    size = dsvi_clip_size_auto(&square, 1, &wan, &limit, 32760);
    assert_true(size.frames == 1 && size.height == 624 && size.width == 624);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_sorted_and_has_no_duplicates),
        cmocka_unit_test(what_is_no_size_is_refused),
        cmocka_unit_test(a_clip_goes_to_the_size_that_it_fills_best),
        cmocka_unit_test(a_clip_without_a_size_is_explained),
        cmocka_unit_test(automatic_sizes_keep_to_clip_and_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
