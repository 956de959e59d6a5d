/* Reading of pictures: values, size, orientation, and files that are no usable pictures. */
#include "data/picture.h"

#include "clip_maker.h"
#include "sample/clip_writer.h"

/* Writes a PNG of a ramp and returns its pixels. */
static float *make_png(const char *path, int64_t height, int64_t width)
{
    float *pixels = video_alloc(1, height, width);
    ramp_clip(pixels, 1, height, width);
    assert_ok(dsvi_clip_write(
        path, &(DsviVideoFrames){.pixels = pixels, .frames = 1, .height = height, .width = width, .fps = 1}));
    return pixels;
}

static void a_picture_of_the_size_keeps_its_values(void **state)
{
    enum { HEIGHT = 12, WIDTH = 20, COUNT = 3 * HEIGHT * WIDTH };
    float found[COUNT], *wanted = make_png(scratch_path("exact.png"), HEIGHT, WIDTH);
    int64_t height, width;
    (void)state;
    assert_ok(dsvi_picture_read(scratch_path("exact.png"), HEIGHT, WIDTH, found, &height, &width));
    assert_int_equal(height, HEIGHT);
    assert_int_equal(width, WIDTH);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabsf(found[i] - ((float)dsvi_video_byte(wanted[i]) / 127.5f - 1)) < 1e-6f);
    free(wanted);
}

static void bytes_are_read_in_the_picture_s_own_size(void **state)
{
    enum { HEIGHT = 13, WIDTH = 22 };
    float *wanted = make_png(scratch_path("bytes.png"), HEIGHT, WIDTH);
    int64_t height, width;
    uint8_t *rgb;
    (void)state;
    assert_ok(dsvi_picture_read_rgb(scratch_path("bytes.png"), &rgb, &height, &width));
    assert_int_equal(height, HEIGHT);
    assert_int_equal(width, WIDTH);
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        for (int c = 0; c < 3; c++)
            assert_int_equal(rgb[3 * i + c], dsvi_video_byte(wanted[c * HEIGHT * WIDTH + i]));
    free(rgb);
    free(wanted);
    assert_fails(DSV_E_NOT_FOUND, "absent.png",
                 dsvi_picture_read_rgb(scratch_path("absent.png"), &rgb, &height, &width));
    assert_null(rgb);
}

/* A picture of 64 x 16 for 8 x 8: scaled to 32 x 8, of which columns 12 to 19 are in the middle. */
static void the_middle_is_cropped(void **state)
{
    enum { SIDE = 8 };
    float found[3 * SIDE * SIDE];
    int64_t height, width;
    (void)state;
    free(make_png(scratch_path("wide.png"), 16, 64));
    assert_ok(dsvi_picture_read(scratch_path("wide.png"), SIDE, SIDE, found, &height, &width));
    assert_int_equal(height, 16);
    assert_int_equal(width, 64);
    for (int x = 0; x < SIDE; x++)
        assert_true(fabsf(found[x] - ramp(0, 0, 1, 0, (12.5 + x) / 32)) < 0.02f);
}

/* A photograph that the camera stored lying on its side, which its EXIF data says. */
static void a_photograph_is_turned_upright(void **state)
{
    static const unsigned char EXIF[] = {0xff, 0xe1, 0, 34, 'E', 'x', 'i', 'f', 0, 0,  'M', 'M',
                                         0,    42,   0, 0,  0,   8,   0,   1,   1, 18, 0,   3,
                                         0,    0,    0, 1,  0,   6,   0,   0,   0, 0,  0,   0};
    enum { HEIGHT = 64, WIDTH = 32, ROOM = 1 << 16 };
    static unsigned char bytes[ROOM];
    static float found[3 * HEIGHT * WIDTH];
    int64_t height, width;
    (void)state;
    free(make_png(scratch_path("lying.png"), WIDTH, HEIGHT));
    run_ffmpeg("-i lying.png -pix_fmt yuvj444p -q:v 1 lying.jpg");
    FILE *file = fopen(scratch_path("lying.jpg"), "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, sizeof bytes - sizeof EXIF, file);
    fclose(file);
    memmove(bytes + 2 + sizeof EXIF, bytes + 2, length - 2);
    memcpy(bytes + 2, EXIF, sizeof EXIF);
    write_bytes(scratch_path("turned.jpeg"), bytes, length + sizeof EXIF);
    assert_ok(dsvi_picture_read(scratch_path("turned.jpeg"), HEIGHT, WIDTH, found, &height, &width));
    assert_int_equal(height, HEIGHT);
    assert_int_equal(width, WIDTH);
    /* a quarter turn to the right: red, which grew to the right, grows downward, and green to the left */
    for (int y = 1; y < HEIGHT - 1; y++)
        for (int x = 1; x < WIDTH - 1; x++) {
            const float *red = found + y * WIDTH + x, *green = red + HEIGHT * WIDTH;
            assert_true(fabsf(*red - ramp(0, 0, 1, 0, (y + 0.5) / HEIGHT)) < 0.05f);
            assert_true(fabsf(*green - ramp(1, 0, 1, 1 - (x + 0.5) / WIDTH, 0)) < 0.05f);
        }
}

static DsvStatus read_small(const char *name)
{
    float pixels[3 * 8 * 8];
    int64_t height, width;
    return dsvi_picture_read(scratch_path(name), 8, 8, pixels, &height, &width);
}

/* Files are told apart by their first bytes: neither a long JPEG file, whose end FFmpeg does not look at, nor
 * one whose name has the ending of another kind is taken for something else. */
static void the_first_bytes_tell_the_kind(void **state)
{
    (void)state;
    run_ffmpeg("-f lavfi -i nullsrc=s=960x540,noise=alls=100 -frames:v 1 -q:v 1 long.jpg");
    assert_ok(read_small("long.jpg"));
    free(make_png(scratch_path("named.png"), 12, 20));
    run_ffmpeg("-i named.png -f image2 -c:v png misnamed.jpg");
    assert_ok(read_small("misnamed.jpg"));
}

static void transparent_pixels_are_refused(void **state)
{
    static const char *const FORMATS[] = {"format=rgba", "format=rgba64be", "format=ya8",
                                          "split[a][b];[a]palettegen[p];[b][p]paletteuse"};
    char arguments[512];
    (void)state;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        for (int opaque = 0; opaque < 2; opaque++) {
            snprintf(arguments, sizeof arguments,
                     "-f lavfi -i \"color=red:s=16x16:d=1:r=1,format=rgba,"
                     "geq=r=200:g=9:b=9:a='if(%d+lt(X,9),255,0)',%s\" -frames:v 1 alpha.png",
                     opaque, FORMATS[i]);
            run_ffmpeg(arguments);
            if (opaque)
                assert_ok(read_small("alpha.png"));
            else
                assert_fails(DSV_E_UNSUPPORTED, "alpha.png: some of its pixels are transparent",
                             read_small("alpha.png"));
        }
}

static void faulty_files_are_named(void **state)
{
    static unsigned char bytes[1 << 16];
    (void)state;
    free(make_png(scratch_path("whole.png"), 40, 40));
    FILE *file = fopen(scratch_path("whole.png"), "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    write_bytes(scratch_path("half.png"), bytes, length / 2);
    write_bytes(scratch_path("head.png"), bytes, 20);
    memset(bytes + 20, 0, 4); /* the height */
    write_bytes(scratch_path("flat.png"), bytes, length);
    write_noise(scratch_path("noise.jpg"), 1000);
    write_text(scratch_path("empty.png"), "");
    assert_ok(dsvi_folder_make(scratch_path("folder.png")));
    assert_ok(read_small("whole.png"));
    assert_fails(DSV_E_FORMAT, "half.png: ", read_small("half.png"));
    assert_fails(DSV_E_FORMAT, "head.png: ", read_small("head.png"));
    assert_fails(DSV_E_FORMAT, "flat.png: frames of 0 x 0 pixels, expected 1 to", read_small("flat.png"));
    assert_fails(DSV_E_FORMAT, "noise.jpg: not a PNG or JPEG file", read_small("noise.jpg"));
    assert_fails(DSV_E_FORMAT, "empty.png: the file is empty", read_small("empty.png"));
    assert_fails(DSV_E_FORMAT, "folder.png: a folder, expected a picture", read_small("folder.png"));
    assert_fails(DSV_E_FORMAT, "clip.mp4: expected a picture whose name ends", read_small("clip.mp4"));
    assert_fails(DSV_E_NOT_FOUND, "absent.png", read_small("absent.png"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_picture_of_the_size_keeps_its_values),
        cmocka_unit_test(bytes_are_read_in_the_picture_s_own_size),
        cmocka_unit_test(the_middle_is_cropped),
        cmocka_unit_test(a_photograph_is_turned_upright),
        cmocka_unit_test(the_first_bytes_tell_the_kind),
        cmocka_unit_test(transparent_pixels_are_refused),
        cmocka_unit_test(faulty_files_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
