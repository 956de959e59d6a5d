/* What the i-th sample of a data set is. Nothing is stored: the permutation of an epoch is computed for one
 * position at a time, by a Feistel network on the next even number of bits, walked until it falls into the
 * range (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4.2), with
 * Philox as its round function. */
#include "data/dataset.h"

#include <string.h>

#include "base/rng.h"

/* Streams of DSV_RNG_DATA: windows in the first, one permutation in each of the others. From the last one
 * down, the windows that are drawn again because the clips of a whole round could not be read. */
enum { STREAM_WINDOW = 0, STREAM_FIRST_EPOCH = 1 };

/* So many broken files in a row are no accident. */
enum { TRIES_MAX = 16 };

/* Draws of one sample in STREAM_WINDOW. */
enum { DRAW_START, DRAW_CROP_X, DRAW_CROP_Y, DRAWS = 4 };

/* Well past the 4 rounds after which a Feistel network with random rounds is a random permutation (M. Luby,
 * C. Rackoff, 1988): small ranges are the ones where it shows. */
enum { ROUNDS = 12 };

static uint64_t feistel(DsvRng rng, int half_bits, uint64_t value)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint32_t words[4];
        dsvi_rng_words(rng, round << 32 | right, words);
        uint64_t mixed = left ^ (words[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

/* Where position `at` of [0, n) goes in this epoch's permutation. */
static uint64_t permuted(uint64_t seed, uint64_t epoch, uint64_t at, uint64_t n)
{
    DsvRng rng = {seed, DSV_RNG_DATA, (uint32_t)epoch + STREAM_FIRST_EPOCH};
    int half_bits = 1;
    while (n > (uint64_t)1 << (2 * half_bits))
        half_bits++;
    do
        at = feistel(rng, half_bits, at);
    while (at >= n);
    return at;
}

/* The window at `start` frames into the clip. */
static DsvClipWindow window_at(const DsvConfig *settings, uint64_t start)
{
    return (DsvClipWindow){
        .start = (double)start / settings->fps, .fps = settings->fps, .frames = settings->num_frames,
        .height = settings->height, .width = settings->width, .crop_x = 0.5, .crop_y = 0.5,
    };
}

/* Last place where a window can begin, in frames. */
static int64_t slack_of(const DsvDatasetItem *clip, const DsvConfig *settings)
{
    int64_t slack = dsvi_clip_grid(&clip->info, settings->fps) - settings->num_frames;
    return slack > 0 ? slack : 0;
}

/* The window of sample `index` in `item` as it is drawn in this round over the items. */
static DsvSampleRef draw_in(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index,
                            int64_t item, int64_t round)
{
    DsvSampleRef ref = {.item = item};
    if (dataset->latents)
        return ref;
    DsvRng rng = {(uint64_t)settings->seed, DSV_RNG_DATA, STREAM_WINDOW - (uint32_t)round};
    uint64_t slack = (uint64_t)slack_of(&dataset->items[item], settings);
    uint64_t start = slack > 0 ? dsvi_rng_below(rng, DRAWS * index + DRAW_START, slack + 1) : 0;
    ref.window = window_at(settings, start);
    if (settings->data_random_crop) {
        ref.window.crop_x = dsvi_rng_uniform(rng, DRAWS * index + DRAW_CROP_X);
        ref.window.crop_y = dsvi_rng_uniform(rng, DRAWS * index + DRAW_CROP_Y);
    }
    return ref;
}

DsvSampleRef dsvi_dataset_sample_in(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index,
                                    int64_t item)
{
    return draw_in(dataset, settings, index, item, 0);
}

DsvSampleRef dsvi_dataset_sample_again(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index,
                                       int64_t attempt)
{
    uint64_t n = (uint64_t)dataset->count;
    int64_t item = (int64_t)permuted((uint64_t)settings->seed, index / n, index % n, n);
    return draw_in(dataset, settings, index, (item + attempt) % dataset->count, attempt / dataset->count);
}

DsvSampleRef dsvi_dataset_sample(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index)
{
    return dsvi_dataset_sample_again(dataset, settings, index, 0);
}

bool dsvi_dataset_is_broken(DsvStatus status)
{
    return status == DSV_E_NOT_FOUND || status == DSV_E_FORMAT || status == DSV_E_SHAPE ||
           status == DSV_E_IO || status == DSV_E_UNSUPPORTED;
}

int64_t dsvi_dataset_tries(const DsvDataset *dataset)
{
    return dataset->latents && dataset->count < TRIES_MAX ? dataset->count : TRIES_MAX;
}

/* Items that follow one another and come from one clip. */
static int64_t clip_end(const DsvDataset *dataset, int64_t begin)
{
    const char *source = dataset->items[begin].source;
    int64_t end = begin + 1;
    while (source && end < dataset->count && strcmp(dataset->items[end].source, source) == 0)
        end++;
    return end;
}

DsvSampleRef dsvi_dataset_spread(const DsvDataset *dataset, const DsvConfig *settings, int64_t k,
                                 int64_t count)
{
    return dsvi_dataset_spread_again(dataset, settings, k, count, 0);
}

DsvSampleRef dsvi_dataset_spread_again(const DsvDataset *dataset, const DsvConfig *settings, int64_t k,
                                       int64_t count, int64_t attempt)
{
    int64_t clips = 0, begin = 0;
    for (int64_t i = 0; i < dataset->count; i = clip_end(dataset, i))
        clips++;
    int64_t clip = k % clips, turn = k / clips, turns = (count - clip + clips - 1) / clips;
    for (int64_t i = 0; i < clip; i++)
        begin = clip_end(dataset, begin);
    /* The middle of one of `turns` equal parts of the clip. */
    int64_t items = clip_end(dataset, begin) - begin;
    DsvSampleRef ref = {.item = (begin + (2 * turn + 1) * items / (2 * turns) + attempt) % dataset->count};
    if (!dataset->latents) {
        int64_t places = slack_of(&dataset->items[ref.item], settings) + 1;
        int64_t place = (2 * turn + 1) * places / (2 * turns) + attempt * settings->num_frames;
        ref.window = window_at(settings, (uint64_t)(place % places));
    }
    return ref;
}
