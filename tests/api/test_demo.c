/* Trains configs/demo.yaml on the clips of tools/demo_clips.sh, and compares each sample with every window
 * that training can draw. It takes some minutes. Without a package registry the test is skipped, because the
 * script's artificial clips have fine patterns, which a small model learns more slowly. */
#include "test.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fs.h"
#include "data/clip.h"
#include "dsv/dsv.h"

/* The smallest PSNR and SSIM at which a person recognises the picture. A run ends at about 26 dB and 0.8. */
static const double PSNR_LEAST = 22, SSIM_LEAST = 0.7;

enum { SEEDS = 4, WINDOWS_MAX = 256, SSIM_SIDE = 7 };

typedef struct Windows {
    int64_t frames, side; /* of each: (3, frames, side, side), F32 in [-1, 1] */
    int count;
    float *pixels[WINDOWS_MAX];
    char name[WINDOWS_MAX][64];
} Windows;

static size_t elements(const Windows *w)
{
    return (size_t)(3 * w->frames * w->side * w->side);
}

static float *read_window(const Windows *w, const char *path, double start, double fps)
{
    const DsviClipWindow window = {
        .start = start,
        .fps = fps,
        .frames = w->frames,
        .height = w->side,
        .width = w->side,
        .crop_x = 0.5,
        .crop_y = 0.5,
    };
    float *pixels = malloc(elements(w) * sizeof *pixels);
    assert_non_null(pixels);
    assert_ok(dsvi_clip_read(path, &window, pixels));
    return pixels;
}

/* Every complete window of every clip in `folder`, prepared as for training. */
static void read_windows(Windows *w, const DsvConfig *config, const char *folder)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[DSVI_PATH_MAX];
        DsviClipInfo info;
        if (!strstr(entry->d_name, ".mp4"))
            continue;
        assert_ok(dsvi_path_join(path, folder, entry->d_name));
        assert_ok(dsvi_clip_probe(path, &info));
        for (int64_t first = 0; first + w->frames <= dsvi_clip_frame_times(&info, config->fps); first++) {
            assert_true(w->count < WINDOWS_MAX);
            snprintf(w->name[w->count], sizeof w->name[0], "%.40s, frame %d", entry->d_name, (int)first);
            w->pixels[w->count++] = read_window(w, path, (double)first / config->fps, config->fps);
        }
    }
    closedir(dir);
    assert_true(w->count > 1);
}

static double psnr(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return 10 * log10(4 * (double)n / sum); /* the range of the values is 2 */
}

/* SSIM of one square of two pictures (Wang et al. 2004, with a uniform window and unbiased variances). */
static double square_ssim(const float *a, const float *b, int64_t row)
{
    const double n = SSIM_SIDE * SSIM_SIDE, c1 = 0.02 * 0.02, c2 = 0.06 * 0.06; /* (K times the range 2)^2 */
    double sum_a = 0, sum_b = 0, square_a = 0, square_b = 0, product = 0;
    for (int64_t y = 0; y < SSIM_SIDE; y++) {
        for (int64_t x = 0; x < SSIM_SIDE; x++) {
            double p = a[y * row + x], q = b[y * row + x];
            sum_a += p;
            sum_b += q;
            square_a += p * p;
            square_b += q * q;
            product += p * q;
        }
    }
    double mean_a = sum_a / n, mean_b = sum_b / n;
    double variance_a = (square_a - n * mean_a * mean_a) / (n - 1);
    double variance_b = (square_b - n * mean_b * mean_b) / (n - 1);
    double covariance = (product - n * mean_a * mean_b) / (n - 1);
    return (2 * mean_a * mean_b + c1) * (2 * covariance + c2) /
           ((mean_a * mean_a + mean_b * mean_b + c1) * (variance_a + variance_b + c2));
}

/* Mean SSIM over all squares of all frames and colours. */
static double ssim(const Windows *w, const float *a, const float *b)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t picture = 0; picture < 3 * w->frames; picture++) {
        for (int64_t y = 0; y + SSIM_SIDE <= w->side; y++) {
            for (int64_t x = 0; x + SSIM_SIDE <= w->side; x++, count++) {
                int64_t at = (picture * w->side + y) * w->side + x;
                sum += square_ssim(a + at, b + at, w->side);
            }
        }
    }
    return sum / (double)count;
}

static void check_sample(const Windows *w, const DsvConfig *config, const char *folder, int seed)
{
    char path[DSVI_PATH_MAX], name[32];
    DsvConfig own = *config;
    double best = -1;
    int nearest = 0;
    own.seed = seed;
    snprintf(name, sizeof name, "seed-%d.mp4", seed);
    assert_ok(dsvi_path_join(path, folder, name));
    assert_ok(dsv_sample(config->output_dir, NULL, path, &own, NULL));
    float *sample = read_window(w, path, 0, config->fps);
    for (int i = 0; i < w->count; i++) {
        double near = psnr(sample, w->pixels[i], elements(w));
        if (near > best) {
            best = near;
            nearest = i;
        }
    }
    double likeness = ssim(w, sample, w->pixels[nearest]);
    print_message("seed %d: %.1f dB and SSIM %.2f to %s\n", seed, best, likeness, w->name[nearest]);
    if (!(best >= PSNR_LEAST && likeness >= SSIM_LEAST))
        fail_msg("seed %d: expected %g dB and SSIM %g", seed, PSNR_LEAST, SSIM_LEAST);
    free(sample);
}

/* Keeps how many blocks were sparse in the last step before the dense finish. */
static void keep_sparse_blocks(void *context, const DsvProgress *progress)
{
    if (!progress->dense_finish)
        *(int64_t *)context = progress->sparse_blocks;
}

static void train_and_check(const char *folder, const char *clips)
{
    DsvConfig config;
    DsvTrainSummary summary;
    int64_t sparse_blocks = 0;
    const DsvEvents events = {.context = &sparse_blocks, .progress = keep_sparse_blocks};
    Windows windows = {0};
    dsv_config_defaults(&config);
    assert_ok(dsv_config_load(&config, DSV_SOURCE_DIR "/configs/demo.yaml"));
    snprintf(config.data_path, sizeof config.data_path, "%s", clips);
    snprintf(config.output_dir, sizeof config.output_dir, "%s/run", folder);
    assert_ok(dsv_train(&config, &events, &summary));
    print_message("trained in %.0f s\n", summary.seconds);
    assert_int_equal(sparse_blocks, summary.blocks);
    assert_true(summary.dense_finish);

    windows.frames = config.num_frames;
    windows.side = config.height;
    read_windows(&windows, &config, clips);
    for (int seed = 1; seed <= SEEDS; seed++)
        check_sample(&windows, &config, folder, seed);
    for (int i = 0; i < windows.count; i++)
        free(windows.pixels[i]);
}

static void samples_show_the_clips(void **state)
{
    char folder[] = "/tmp/dsv-demo-XXXXXX", clips[DSVI_PATH_MAX], credits[DSVI_PATH_MAX];
    char command[3 * DSVI_PATH_MAX];
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_ok(dsvi_path_join(clips, folder, "clips"));
    snprintf(command, sizeof command, "%s/tools/demo_clips.sh %s", DSV_SOURCE_DIR, clips);
    assert_int_equal(system(command), 0);
    assert_ok(dsvi_path_join(credits, clips, "CREDITS.txt")); /* exists only with real clips */
    bool real = dsvi_path_exists(credits);
    if (real)
        train_and_check(folder, clips);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (!real)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_show_the_clips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
