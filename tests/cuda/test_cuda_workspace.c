/* Workspaces of attention over lists, or with a tail. A workspace that suffices for many heads must also
 * suffice for fewer heads, as src/ops/attention.h promises, because workspaces are planned for the rank with
 * most heads. Its size must not depend on the scale, which is not known when workspaces are planned. Needs no
 * GPU. */
#include "cuda/common/cuda.h"
#include "cuda/device_cuda.h"
#include "test.h"

enum { MULTIPROCESSORS = 132, MANY_HEADS = 40, GROUP = 128 };

typedef enum Pass { LIST_BACKWARD, TAIL_FORWARD, TAIL_BACKWARD, PASSES } Pass;

static const char *const NAMES[PASSES] = {"backward over lists", "tail forward", "tail backward"};

typedef struct Shape {
    int64_t batch, tokens, dim, grain, chunk, run;
} Shape;

static const Shape SHAPES[] = {
    {1, 75600, 128, 1, 64, 1},  {1, 32760, 128, 128, 128, 1}, {2, 32760, 72, 1, 16, 1},
    {1, 4096, 128, 128, 64, 8}, {3, 777, 64, 1, 1, 16},       {1, 32760, 128, 8, 1, 64},
    {1, 75600, 128, 8, 1, 16},
};

static size_t workspace(Pass pass, bool deterministic, const Shape *shape, int64_t heads, double scale)
{
    DsviOps ops;
    DsviStream stream = {
        .capability = 90, .multiprocessors = MULTIPROCESSORS, .deterministic = deterministic};
    DsviLists lists = {.batch = shape->batch,
                       .heads = heads,
                       .queries = shape->tokens,
                       .keys = shape->tokens,
                       .group = GROUP,
                       .grain = shape->grain,
                       .groups = (shape->tokens + GROUP - 1) / GROUP};
    DsviAttentionTailArgs args = {.attention = {.batch = shape->batch,
                                                .heads = heads,
                                                .queries = shape->tokens,
                                                .keys = shape->tokens,
                                                .head_dim = shape->dim,
                                                .scale = scale,
                                                .act = DSVI_BF16,
                                                .acc = DSVI_F32,
                                                .lists = &lists},
                                  .chunk = shape->chunk,
                                  .run = shape->run};
    if (pass == LIST_BACKWARD)
        return dsvi_cuda_attention_list_workspace(&stream, &args.attention);
    dsvi_cuda_fill_attention_tail(&stream, &ops);
    return pass == TAIL_FORWARD ? ops.attention_tail_fwd.workspace(&stream, &args)
                                : ops.attention_tail_bwd.workspace(&stream, &args);
}

static void check_fewer_heads(Pass pass, bool deterministic, const Shape *shape)
{
    size_t fewer = 0;
    for (int64_t heads = 1; heads <= MANY_HEADS; heads++) {
        size_t bytes = workspace(pass, deterministic, shape, heads, 1);
        if (bytes == 0 || bytes < fewer)
            fail_msg("%s, %d tokens: %d heads need %zu bytes, one less %zu%s", NAMES[pass],
                     (int)shape->tokens, (int)heads, bytes, fewer, deterministic ? ", deterministic" : "");
        fewer = bytes;
    }
}

typedef void CheckWorkspace(Pass pass, bool deterministic, const Shape *shape);

static void check_all(CheckWorkspace *check)
{
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (Pass pass = LIST_BACKWARD; pass < PASSES; pass++)
            for (int deterministic = 0; deterministic < 2; deterministic++)
                check(pass, deterministic, &SHAPES[i]);
}

static void workspace_suffices_for_fewer_heads(void **state)
{
    (void)state;
    check_all(check_fewer_heads);
}

static void check_scale(Pass pass, bool deterministic, const Shape *shape)
{
    size_t planned = workspace(pass, deterministic, shape, MANY_HEADS, 0);
    size_t needed = workspace(pass, deterministic, shape, MANY_HEADS, 1);
    if (planned != needed)
        fail_msg("%s, %d tokens: %zu bytes with scale 0, %zu with scale 1%s", NAMES[pass], (int)shape->tokens,
                 planned, needed, deterministic ? ", deterministic" : "");
}

static void workspace_does_not_depend_on_the_scale(void **state)
{
    (void)state;
    check_all(check_scale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_suffices_for_fewer_heads),
        cmocka_unit_test(workspace_does_not_depend_on_the_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
