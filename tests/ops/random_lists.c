/* Lists of runs drawn one by one. */
#include "ops/random_lists.h"

#include "base/rng.h"
#include "test.h"

void random_lists_create(DsvLists *lists, double density, uint64_t seed)
{
    DsvRng rng = {seed, DSV_RNG_TEST, 100};
    int64_t full = dsvi_lists_full(lists), total = 0;
    lists->groups = (lists->queries + lists->group - 1) / lists->group;
    lists->capacity = dsvi_lists_count(lists) * full;
    lists->offsets = malloc((size_t)(dsvi_lists_count(lists) + 1) * sizeof *lists->offsets);
    lists->runs = malloc((size_t)(lists->capacity + 1) * sizeof *lists->runs);
    assert_true(lists->offsets && lists->runs);
    lists->offsets[0] = 0;
    for (int64_t n = 0; n < dsvi_lists_count(lists); n++) {
        for (int64_t run = 0; run < full && (density >= 0 || n % 2 == 0); run++)
            if (dsvi_rng_uniform(rng, (uint64_t)(n * full + run)) < fabs(density))
                lists->runs[total++] = (int32_t)run;
        lists->offsets[n + 1] = total;
    }
}

void random_lists_free(DsvLists *lists)
{
    free(lists->offsets);
    free(lists->runs);
    lists->offsets = NULL;
    lists->runs = NULL;
}
