/* Real clips of several cameras, encoders and containers. */
#include "data/clip.h"

#include "clip_maker.h"

typedef struct RealClip {
    const char *file;
    int64_t width, height, frames;
    double fps;
    const char *codec;
} RealClip;

/* Counted by decoding with other software, and stated in the README next to the clips. */
static const RealClip CLIPS[] = {
    {"clips/dog_catch.mp4", 1280, 720, 289, 29.97, "h264"},
    {"clips/blocks_hands.mp4", 1280, 720, 292, 29.97, "h264"},
    {"clips/football_juggle.mp4", 1280, 720, 247, 24, "h264"},
    {"clips/flower_open.mp4", 960, 540, 150, 29.97, "h264"},
    {"clips/film_friday.mp4", 640, 480, 185, 30, "h264"},
    {"clips/stream_of_water.mp4", 480, 360, 90, 29.97, "h264"},
    {"clips/rabbit_toy.mp4", 320, 240, 234, 30, "h264"},
    {"clips/car_overhead.mp4", 768, 432, 377, 12.5, "h264"},
    {"clips/bottles.mp4", 640, 360, 1189, 29.833, "h264"},
    {"clips/sign_walk.mkv", 640, 480, 89, 30, "h264"},
    {"clips/sign_learn.mkv", 640, 480, 61, 30, "h264"},
    {"clips/sign_want.mkv", 640, 480, 47, 30, "h264"},
    {"clips/sign_sister.mkv", 640, 480, 87, 30, "h264"},
    {"clips/bbb_720p_wake.mp4", 1280, 720, 132, 25, "h264"},
    {"clips/tears_of_steel_battle.webm", 798, 332, 1691, 24, "vp8"}, /* 800 at a pixel aspect of 399:400 */
    {"clips/nasa_telescope.mp4", 320, 180, 325, 25, "h264"},         /* the first of its two video streams */
};
enum {
    CLIP_COUNT = sizeof CLIPS / sizeof *CLIPS,
    SIDE = 32,
    WINDOW = 5,
    FRAMES_MAX = 100 /* of a clip decoded whole: 12.5 s */
};

static void real_clips_are_what_their_list_says(void **state)
{
    (void)state;
    for (int i = 0; i < CLIP_COUNT; i++) {
        const RealClip *clip = &CLIPS[i];
        DsviClipInfo info;
        assert_ok(dsvi_clip_probe(shared_path(clip->file), &info));
        assert_int_equal(info.width, clip->width);
        assert_int_equal(info.height, clip->height);
        assert_string_equal(info.codec, clip->codec);
        assert_int_equal(info.frames, clip->frames);
        assert_error_below(fabs(info.fps - clip->fps), 1e-3, "%s: fps", clip->file);
        assert_error_below(fabs(info.seconds - (double)clip->frames / clip->fps), 1 / clip->fps,
                           "%s: seconds", clip->file);
    }
}

/* A window read by seeking equals the same frames of the clip decoded from its beginning. */
static void seeking_changes_no_byte(void **state)
{
    (void)state;
    size_t bytes = sizeof(float) * 3 * WINDOW * SIDE * SIDE;
    for (int i = 0; i < CLIP_COUNT; i++) {
        const char *path = shared_path(CLIPS[i].file);
        DsviClipInfo info;
        int64_t height, width, covered;
        assert_ok(dsvi_clip_probe(path, &info));
        DsviClipWindow whole = {
            .fps = 8, .frames = dsvi_clip_frame_times(&info, 8), .height = SIDE, .width = SIDE};
        if (whole.frames > FRAMES_MAX)
            whole.frames = FRAMES_MAX;
        assert_ok(dsvi_clip_cover(path, info.height, info.width, SIDE, SIDE, &height, &width));
        uint8_t *rgb = malloc((size_t)(whole.frames * 3 * height * width));
        float *found = video_alloc(WINDOW, SIDE, SIDE), *wanted = video_alloc(WINDOW, SIDE, SIDE);
        assert_non_null(rgb);
        assert_ok(dsvi_clip_read_rgb(path, &whole, height, width, rgb, &covered));
        assert_int_equal(covered, whole.frames);
        for (int64_t part = 1; part <= 3; part++) {
            DsviClipWindow w = whole;
            int64_t first = part * (whole.frames - WINDOW) / 3;
            w.frames = WINDOW;
            w.start = (double)first / w.fps;
            assert_ok(dsvi_clip_read(path, &w, found));
            for (int64_t f = 0; f < WINDOW; f++)
                dsvi_clip_crop(&w, rgb + (first + f) * 3 * height * width, height, width, f, wanted);
            assert_memory_equal(found, wanted, bytes);
        }
        free(rgb);
        free(found);
        free(wanted);
    }
}

int main(void)
{
    skip_without_shared("clips/README.md");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_clips_are_what_their_list_says),
        cmocka_unit_test(seeking_changes_no_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
