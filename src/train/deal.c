/* Implements deal.h. */
#include "train/deal.h"

#include <stdbool.h>

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Sorts `order` by falling cost; equal costs stay in order. By insertion: a step has few batches. */
static void sort_by_cost(const DsviDeal *d)
{
    for (int64_t i = 0; i < d->ranks * d->passes; i++) {
        int64_t at = i;
        for (; at > 0 && d->cost[d->order[at - 1]] < d->cost[i]; at--)
            d->order[at] = d->order[at - 1];
        d->order[at] = i;
    }
}

static int64_t *place_of(const DsviDeal *d, int64_t rank, int64_t pass)
{
    return &d->dealt[rank * d->passes + pass];
}

static void give(DsviDeal *d, int64_t rank, int64_t pass, int64_t batch)
{
    *place_of(d, rank, pass) = batch;
    d->load[rank] += d->cost[batch];
}

static void clear(DsviDeal *d)
{
    for (int64_t i = 0; i < d->ranks * d->passes; i++)
        d->dealt[i] = -1;
    for (int64_t rank = 0; rank < d->ranks; rank++)
        d->load[rank] = 0;
}

/* Returns the rank with the least load among those without a batch of this pass. */
static int64_t least_loaded(const DsviDeal *d, int64_t pass)
{
    int64_t least = -1;
    for (int64_t rank = 0; rank < d->ranks; rank++)
        if (*place_of(d, rank, pass) < 0 && (least < 0 || d->load[rank] < d->load[least]))
            least = rank;
    return least;
}

/* Exchanges a batch of rank a, in pass p, for a batch of rank b, in pass q, if the slower of the two becomes
 * faster. */
static bool exchange(DsviDeal *d, int64_t a, int64_t p, int64_t b, int64_t q)
{
    int64_t *of_a = place_of(d, a, p), *of_b = place_of(d, b, q), moved = *of_a;
    double change = d->cost[*of_b] - d->cost[*of_a], slower = larger(d->load[a], d->load[b]);
    /* a gain within the rounding of sums is none, so that the exchanges end */
    if (!(larger(d->load[a] + change, d->load[b] - change) < slower * (1 - 1e-12)))
        return false;
    d->load[a] += change;
    d->load[b] -= change;
    *of_a = *of_b;
    *of_b = moved;
    return true;
}

/* Exchanges batches until no exchange of two helps. */
static void improve(DsviDeal *d)
{
    for (bool improved = true; improved;) {
        improved = false;
        for (int64_t a = 0; a < d->ranks; a++)
            for (int64_t b = a + 1; b < d->ranks; b++)
                for (int64_t pair = 0; pair < d->passes * d->passes; pair++)
                    improved = exchange(d, a, pair / d->passes, b, pair % d->passes) || improved;
    }
}

/* Sorts the batches of a rank by falling cost; equal costs are in order of their indices. */
static void sort_passes(const DsviDeal *d, int64_t rank)
{
    int64_t *of = place_of(d, rank, 0);
    for (int64_t i = 1; i < d->passes; i++) {
        int64_t moved = of[i], at = i;
        for (; at > 0 && (d->cost[of[at - 1]] < d->cost[moved] ||
                          (d->cost[of[at - 1]] == d->cost[moved] && of[at - 1] > moved));
             at--)
            of[at] = of[at - 1];
        of[at] = moved;
    }
}

void dsvi_deal(DsviDeal *d)
{
    sort_by_cost(d);
    clear(d);
    for (int64_t i = 0; i < d->ranks * d->passes; i++)
        give(d, least_loaded(d, i / d->ranks), i / d->ranks, d->order[i]);
    improve(d);
    for (int64_t rank = 0; rank < d->ranks; rank++)
        sort_passes(d, rank);
}

void dsvi_deal_in_order(DsviDeal *d)
{
    clear(d);
    for (int64_t i = 0; i < d->ranks * d->passes; i++)
        give(d, i % d->ranks, i / d->ranks, i);
}
