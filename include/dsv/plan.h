/* How ranks that share a clip would share out its self-attention, and what that would take: context
 * parallelism before there is a run. */
#ifndef DSV_PLAN_H
#define DSV_PLAN_H

#include "dsv/bench.h"
#include "dsv/ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvPlanQuestion {
    int64_t ranks;         /* that share a clip; 0: cp_size */
    const char *table;     /* what attention and links cost, as `save` or a run writes it; NULL: measured */
    const char *densities; /* a density, of all lists; or a JSON file: an array with a density for each block,
                            * or an array of those of its heads, or null where it attends densely. NULL: all
                            * blocks attend densely */
    const char *save;      /* the table is written there; or NULL */
} DsvPlanQuestion;

/* Tells `line`, as a table, who would have which tokens, and for each block of the model that config
 * describes the degrees, the placement of heads, the time of a training step's attention that is to be
 * expected, and the same for choices made without looking: all ranks divide the heads in order; all divide
 * the tokens, sending the keys that lists name, or all keys. As one JSON object to json_path (NULL: nowhere).
 *
 * Without a table `ranks` measure attention and the links between them (ranks.h), and are then those that
 * share the clip: all of them call, and rank 0 speaks and writes. NULL: this process measures on the CPU,
 * with threads for ranks. */
DsvStatus dsv_plan(DsvRanks *ranks, const DsvPlanQuestion *question, const DsvConfig *config,
                   const char *json_path, DsvLine *line, void *context);

#ifdef __cplusplus
}
#endif
#endif
