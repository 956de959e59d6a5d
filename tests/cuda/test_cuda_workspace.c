/* A workspace of attention over lists that suffices for many heads must also suffice for fewer heads, as
 * src/ops/attention.h promises, because workspaces are planned for the rank with most heads. Needs no GPU. */
#include "cuda/common/cuda.h"
#include "cuda/device_cuda.h"
#include "test.h"

enum { MULTIPROCESSORS = 132, MANY_HEADS = 40, GROUP = 128 };

typedef struct Shape {
    int64_t batch, tokens, dim, grain;
} Shape;

static size_t workspace(bool deterministic, const Shape *shape, int64_t heads)
{
    DsviStream stream = {
        .capability = 90, .multiprocessors = MULTIPROCESSORS, .deterministic = deterministic};
    DsviLists lists = {.batch = shape->batch,
                       .heads = heads,
                       .queries = shape->tokens,
                       .keys = shape->tokens,
                       .group = GROUP,
                       .grain = shape->grain,
                       .groups = (shape->tokens + GROUP - 1) / GROUP};
    DsviAttentionArgs args = {.batch = shape->batch,
                              .heads = heads,
                              .queries = shape->tokens,
                              .keys = shape->tokens,
                              .head_dim = shape->dim,
                              .scale = 1,
                              .act = DSVI_BF16,
                              .acc = DSVI_F32,
                              .lists = &lists};
    return dsvi_cuda_attention_list_workspace(&stream, &args);
}

static void workspace_suffices_for_fewer_heads(void **state)
{
    static const Shape shapes[] = {
        {1, 75600, 128, 1}, {1, 32760, 128, 128}, {2, 32760, 72, 1}, {1, 4096, 128, 128}, {3, 777, 64, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            size_t fewer = 0;
            for (int64_t heads = 1; heads <= MANY_HEADS; heads++) {
                size_t bytes = workspace(deterministic, &shapes[i], heads);
                if (bytes < fewer)
                    fail_msg("%d tokens: %d heads need %zu bytes, one less %zu%s", (int)shapes[i].tokens,
                             (int)heads, bytes, fewer, deterministic ? ", deterministic" : "");
                fewer = bytes;
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workspace_suffices_for_fewer_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
