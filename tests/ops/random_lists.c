/* Makes key lists by drawing each span at random; see random_lists.h. */
#include "ops/random_lists.h"

#include "base/rng.h"
#include "test.h"

void random_lists_create(DsviLists *lists, double density, uint64_t seed)
{
    DsviRng rng = {seed, DSVI_RNG_TEST, 100};
    int64_t full = dsvi_lists_full(lists), total = 0;
    lists->groups = (lists->queries + lists->group - 1) / lists->group;
    lists->capacity = dsvi_lists_count(lists) * full;
    lists->offsets = malloc((size_t)(dsvi_lists_count(lists) + 1) * sizeof *lists->offsets);
    lists->spans = malloc((size_t)(lists->capacity + 1) * sizeof *lists->spans);
    assert_true(lists->offsets && lists->spans);
    lists->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(lists); n++) {
        for (int64_t span = 0; span < full && (density >= 0 || n % 2 == 0); span++)
            if (dsvi_rng_uniform(rng, (uint64_t)(n * full + span)) < fabs(density))
                lists->spans[total++] = (int32_t)span;
        lists->offsets[n + 1] = total;
    }
}

void random_lists_free(DsviLists *lists)
{
    free(lists->offsets);
    free(lists->spans);
    lists->offsets = NULL;
    lists->spans = NULL;
}
