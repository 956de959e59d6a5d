/* Defines the i-th sample of a data set. The permutation of the items in an epoch is not stored: it is
 * computed for one position at a time by a Feistel network over the smallest even number of bits that
 * covers all positions, applied repeatedly until the result is in the range (cycle walking: J. Black, P.
 * Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4.2). Its round function is
 * Philox. */
#include "data/dataset.h"

#include <string.h>

#include "base/rng.h"
#include "data/dataset_sizes.h"

/* Numbers of the random streams with purpose DSVI_RNG_DATA: stream 0 draws windows, each following stream
 * is the permutation of one epoch. Windows that are drawn again, because every item was tried for a
 * sample and none could be read, use streams from the largest number downward. */
enum { STREAM_WINDOW = 0, STREAM_FIRST_EPOCH = 1 };

/* Positions of the random numbers of one sample in stream STREAM_WINDOW: sample i uses the numbers DRAWS * i
   + DRAW_START, and so on. */
enum { DRAW_START, DRAW_CROP_X, DRAW_CROP_Y, DRAW_CAPTION, DRAWS };

/* Number of rounds of the Feistel network. Far more than the 4 rounds after which a Feistel network with
 * random rounds is a random permutation (M. Luby, C. Rackoff, 1988), because deviations show for small
 * ranges. */
enum { ROUNDS = 12 };

static uint64_t feistel(DsviRng rng, int half_bits, uint64_t value)
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

/* Returns the number in [0, n) to which this epoch's permutation maps position `at`. */
static uint64_t permuted_position(uint64_t seed, uint64_t epoch, uint64_t at, uint64_t n)
{
    DsviRng rng = {seed, DSVI_RNG_DATA, (uint32_t)epoch + STREAM_FIRST_EPOCH};
    int half_bits = 1;
    while (n > (uint64_t)1 << (2 * half_bits))
        half_bits++;
    do
        at = feistel(rng, half_bits, at);
    while (at >= n);
    return at;
}

/* Returns the window of an item that begins `start` frames into the clip, cropped in the middle. */
static DsviClipWindow dataset_window_at(const DsviDataset *dataset, const DsvConfig *config, int64_t item,
                                        uint64_t start)
{
    DsviClipSize size = dsvi_dataset_size(dataset, config, item);
    return (DsviClipWindow){
        .start = (double)start / config->fps,
        .fps = config->fps,
        .frames = size.frames,
        .height = size.height,
        .width = size.width,
        .crop_x = 0.5,
        .crop_y = 0.5,
    };
}

/* Returns the last frame of the clip at which a window can begin without reaching beyond its end. */
static int64_t slack_of(const DsviDataset *dataset, const DsvConfig *config, int64_t item)
{
    int64_t slack = dsvi_clip_frame_times(&dataset->items[item].info, config->fps) -
                    dsvi_dataset_size(dataset, config, item).frames;
    return slack > 0 ? slack : 0;
}

/* Returns whether sample `index` is trained with the empty prompt instead of its caption. */
static bool drops_caption(const DsvConfig *config, uint64_t index)
{
    return dsvi_rng_uniform((DsviRng){(uint64_t)config->seed, DSVI_RNG_TEXT, 0}, index) <
           config->caption_dropout;
}

/* Draws the caption and the window of sample `index` in `item`. `round` is how many times all items were
 * already tried for this sample. */
static DsviSampleRef draw_in(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                             int64_t item, int64_t round)
{
    DsviSampleRef ref = {.item = item};
    DsviRng rng = {(uint64_t)config->seed, DSVI_RNG_DATA, STREAM_WINDOW - (uint32_t)round};
    uint64_t captions = (uint64_t)dataset->items[item].captions.count;
    ref.caption = captions > 0 ? (int64_t)dsvi_rng_below(rng, DRAWS * index + DRAW_CAPTION, captions) : -1;
    if (drops_caption(config, index))
        ref.caption = -1;
    if (dataset->latents)
        return ref;
    uint64_t slack = (uint64_t)slack_of(dataset, config, item);
    uint64_t start = dataset->fixed ? (uint64_t)dataset->items[item].start
                     : slack > 0    ? dsvi_rng_below(rng, DRAWS * index + DRAW_START, slack + 1)
                                    : 0;
    ref.window = dataset_window_at(dataset, config, item, start);
    if (config->data_random_crop) {
        ref.window.crop_x = dsvi_rng_uniform(rng, DRAWS * index + DRAW_CROP_X);
        ref.window.crop_y = dsvi_rng_uniform(rng, DRAWS * index + DRAW_CROP_Y);
    }
    return ref;
}

DsviSampleRef dsvi_dataset_sample_in(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                                     int64_t item)
{
    return draw_in(dataset, config, index, item, 0);
}

/* ---- Several sizes ---- */

/* Returns the number of items of a size. */
static int64_t items_of(const DsviDataset *dataset, int64_t size)
{
    return dataset->first_of[size + 1] - dataset->first_of[size];
}

/* Returns the number of places of a size in an epoch. */
static uint64_t places_of(const DsviDataset *dataset, int64_t size)
{
    int64_t past = dataset->first_of[size + 1];
    return items_of(dataset, size) > 0 ? (uint64_t)dataset->places_end[past - 1] : 0;
}

static uint64_t batches_of(const DsviDataset *dataset, const DsvConfig *config, int64_t size)
{
    uint64_t batch = (uint64_t)config->train_batch_size;
    return (places_of(dataset, size) + batch - 1) / batch;
}

uint64_t dsvi_dataset_epoch_batches(const DsviDataset *dataset, const DsvConfig *config)
{
    uint64_t count = 0, batch = (uint64_t)config->train_batch_size;
    if (!dataset->order)
        return ((uint64_t)dataset->count + batch - 1) / batch;
    for (int64_t size = 0; size < dataset->sizes.count; size++)
        count += batches_of(dataset, config, size);
    return count;
}

/* Finds the size of a batch, and sets *of_size to the batch's number among those of this size in its epoch.
 */
static int64_t find_batch(const DsviDataset *dataset, const DsvConfig *config, uint64_t batch,
                          uint64_t *of_size)
{
    uint64_t n = dsvi_dataset_epoch_batches(dataset, config);
    uint64_t at = permuted_position((uint64_t)config->seed, batch / n, batch % n, n);
    int64_t size = 0;
    for (; at >= batches_of(dataset, config, size); size++)
        at -= batches_of(dataset, config, size);
    *of_size = at;
    return size;
}

int64_t dsvi_dataset_batch_size(const DsviDataset *dataset, const DsvConfig *config, uint64_t batch)
{
    uint64_t of_size;
    return dataset->order ? find_batch(dataset, config, batch, &of_size) : 0;
}

/* Returns a seed with which the order of a size's items is independent of the order of batches. */
static uint64_t seed_of_size(const DsvConfig *config, int64_t size)
{
    return (uint64_t)config->seed ^ 0x9e3779b97f4a7c15u * (uint64_t)(size + 1);
}

/* Returns the number, among the `count` items of a size, of the item that has this place; ends (count): the
 * end of each item's places. */
static uint64_t item_at(const int64_t *ends, int64_t count, uint64_t place)
{
    int64_t low = 0;
    while (count > 0) {
        int64_t half = count / 2;
        bool after = (uint64_t)ends[low + half] <= place;
        low = after ? low + half + 1 : low;
        count = after ? count - half - 1 : half;
    }
    return (uint64_t)low;
}

/* The sample after `attempt` replacements, which are the next items of the same size. */
static DsviSampleRef sample_of_sizes(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                                     int64_t attempt)
{
    uint64_t batch = (uint64_t)config->train_batch_size, of_size;
    int64_t size = find_batch(dataset, config, index / batch, &of_size);
    uint64_t n = places_of(dataset, size),
             epoch = index / batch / dsvi_dataset_epoch_batches(dataset, config);
    uint64_t at = permuted_position(seed_of_size(config, size), epoch, (of_size * batch + index % batch) % n,
                                    n);
    const int64_t *order = dataset->order + dataset->first_of[size], items = items_of(dataset, size);
    uint64_t rank = item_at(dataset->places_end + dataset->first_of[size], items, at) + (uint64_t)attempt;
    return draw_in(dataset, config, index, order[rank % (uint64_t)items], attempt / items);
}

/* ---- Samples ---- */

DsviSampleRef dsvi_dataset_sample_again(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                                        int64_t attempt)
{
    if (dataset->order)
        return sample_of_sizes(dataset, config, index, attempt);
    uint64_t n = (uint64_t)dataset->count;
    int64_t item = (int64_t)permuted_position((uint64_t)config->seed, index / n, index % n, n);
    return draw_in(dataset, config, index, (item + attempt) % dataset->count, attempt / dataset->count);
}

DsviSampleRef dsvi_dataset_sample(const DsviDataset *dataset, const DsvConfig *config, uint64_t index)
{
    return dsvi_dataset_sample_again(dataset, config, index, 0);
}

DsvStatus dsvi_dataset_text_states(const DsviDataset *dataset, int64_t item, int64_t caption,
                                   int64_t rows_max, float *rows, int64_t *count)
{
    const DsviDatasetItem *of = &dataset->items[item];
    const DsviTextStore *text = &dataset->sources[of->from].text;
    DSVI_ASSERT(caption >= -1 && caption < of->captions.count);
    const DsviHashKey *key = caption < 0 ? &text->empty : &of->captions.at[caption].states;
    if (!text->folder[0] || !key->hex[0])
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: no text states for it: expected clips encoded with dsv encode --model",
                         of->path);
    return dsvi_text_states_read(text, key, rows_max, rows, count);
}

bool dsvi_dataset_is_broken(DsvStatus status)
{
    return status == DSV_E_NOT_FOUND || status == DSV_E_FORMAT || status == DSV_E_SHAPE ||
           status == DSV_E_IO || status == DSV_E_UNSUPPORTED;
}

int64_t dsvi_dataset_tries(const DsviDataset *dataset, int64_t item)
{
    int64_t windows = dataset->order ? items_of(dataset, dataset->items[item].size) : dataset->count;
    return dataset->latents && windows < DSVI_DATASET_TRIES_MAX ? windows : DSVI_DATASET_TRIES_MAX;
}

/* Returns the end of the range of consecutive items from `begin` that come from one clip. */
static int64_t clip_end(const DsviDataset *dataset, int64_t begin)
{
    const char *source = dataset->items[begin].source;
    int64_t end = begin + 1;
    while (source && end < dataset->count && strcmp(dataset->items[end].source, source) == 0)
        end++;
    return end;
}

DsviSampleRef dsvi_dataset_spread(const DsviDataset *dataset, const DsvConfig *config, int64_t k,
                                  int64_t count)
{
    return dsvi_dataset_spread_again(dataset, config, k, count, 0);
}

DsviSampleRef dsvi_dataset_spread_again(const DsviDataset *dataset, const DsvConfig *config, int64_t k,
                                        int64_t count, int64_t attempt)
{
    int64_t clips = 0, begin = 0;
    for (int64_t i = 0; i < dataset->count; i = clip_end(dataset, i))
        clips++;
    int64_t clip = k % clips, turn = k / clips, turns = (count - clip + clips - 1) / clips;
    for (int64_t i = 0; i < clip; i++)
        begin = clip_end(dataset, begin);
    /* the window begins in the middle of one of `turns` equal parts of the clip */
    int64_t items = clip_end(dataset, begin) - begin;
    DsviSampleRef ref = {.item = (begin + (2 * turn + 1) * items / (2 * turns) + attempt) % dataset->count};
    ref.caption = dataset->items[ref.item].captions.count > 0 ? 0 : -1;
    if (!dataset->latents) {
        int64_t places = slack_of(dataset, config, ref.item) + 1;
        int64_t place = (2 * turn + 1) * places / (2 * turns) + attempt * config->num_frames;
        ref.window = dataset_window_at(dataset, config, ref.item, (uint64_t)(place % places));
    }
    return ref;
}
