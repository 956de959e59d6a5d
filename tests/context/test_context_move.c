/* Tokens for heads and back, and heads forms put together and summed: every element where it belongs, nothing
 * beside it written, and as many bytes sent as context.h says. */
#include "test.h"

#include "context/context_rig.h"
#include "cpu/cpu.h"

enum { GUARD = 64, TENSOR = 3 };

static DsvBackend backend;

/* Filled with 0xff, with as many bytes behind. */
static unsigned char *take(size_t bytes)
{
    unsigned char *memory = malloc(bytes + GUARD);
    return memory ? memset(memory, 0xff, bytes + GUARD) : NULL;
}

static bool untouched(const unsigned char *memory, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++)
        if (memory[i] != 0xff)
            return false;
    return true;
}

static uint64_t sent_in_all(const DsvContextPart *part)
{
    return dsvi_comm_sent(part->head_device).bytes + dsvi_comm_sent(part->sequence_device).bytes;
}

/* Tensor number i of those that move together: both forms, and what they are to be. */
typedef struct Moved {
    DsvContextForms forms;
    unsigned char *tokens, *wanted, *room, *back;
} Moved;

static Moved open_moved(DsvContext *context, const ContextCase *c, int i, size_t bytes, size_t most)
{
    Moved m = {.tokens = take(bytes), .wanted = take(most), .room = take(most), .back = take(bytes)};
    context_fill(context, c, c->act, TENSOR + i, false, m.tokens);
    context_fill(context, c, c->act, TENSOR + i, true, m.wanted);
    m.forms = (DsvContextForms){m.tokens, dsvi_context_heads_place(context, 0, m.tokens, m.room)};
    return m;
}

static void close_moved(Moved *m)
{
    free(m->tokens);
    free(m->wanted);
    free(m->room);
    free(m->back);
}

/* `count` tensors at once. */
static DsvStatus move_together(DsvContext *context, const ContextCase *c, int count)
{
    const DsvContextTensor tensor = {c->batch, c->head_dim, c->act};
    DsvContextPart part = dsvi_context_part(context, 0);
    size_t size = dsvi_dtype_size(c->act), bytes = dsvi_context_tokens_bytes(context, &tensor);
    size_t most = dsvi_context_heads_bytes(context, &tensor);
    size_t staged = dsvi_context_move_bytes(context, &tensor);
    size_t used = (size_t)(c->batch * part.tokens * part.heads * c->head_dim) * size;
    unsigned char *workspace = take(staged);
    uint64_t own = (uint64_t)dsvi_context_tokens(context);
    uint64_t row = (uint64_t)(count * c->batch * c->head_dim) * size;
    DsvContextForms forms[DSV_CONTEXT_TOGETHER];
    Moved moved[DSV_CONTEXT_TOGETHER];
    DsvStatus status = DSV_OK;
    for (int i = 0; i < count; i++) {
        moved[i] = open_moved(context, c, i, bytes, most);
        forms[i] = moved[i].forms;
    }
    uint64_t before = sent_in_all(&part);
    DSVI_TRY_GOTO(status, dsvi_context_to_heads(context, 0, &tensor, forms, count, workspace), done);
    EXPECT(sent_in_all(&part) - before == own * (uint64_t)(c->heads - part.heads) * row);
    for (int i = 0; i < count; i++) {
        EXPECT(forms[i].heads == (c->head_ranks == 1 ? moved[i].tokens : moved[i].room));
        EXPECT(memcmp(forms[i].heads, moved[i].wanted, used) == 0);
        forms[i].tokens = moved[i].back;
        forms[i].heads = dsvi_context_heads_place(context, 0, moved[i].back, moved[i].room);
        if (forms[i].heads == moved[i].back)
            memcpy(moved[i].back, moved[i].wanted, used);
    }
    before = sent_in_all(&part);
    DSVI_TRY_GOTO(status, dsvi_context_to_tokens(context, 0, &tensor, forms, count, workspace), done);
    EXPECT(sent_in_all(&part) - before == ((uint64_t)part.tokens - own) * (uint64_t)part.heads * row);
    EXPECT(untouched(workspace, staged));
    for (int i = 0; i < count; i++) {
        EXPECT(memcmp(moved[i].back, moved[i].tokens, bytes) == 0);
        EXPECT(untouched(moved[i].tokens, bytes) && untouched(moved[i].back, bytes));
        EXPECT(untouched(moved[i].room, most));
    }
done:
    free(workspace);
    for (int i = 0; i < count; i++)
        close_moved(&moved[i]);
    return status;
}

static DsvStatus there_and_back(DsvContext *context, const ContextCase *c, void *ignored)
{
    (void)ignored;
    for (int count = 1; count <= DSV_CONTEXT_TOGETHER; count++)
        DSVI_TRY(move_together(context, c, count));
    return DSV_OK;
}

/* All tokens of the own heads. */
static void fill_all(const ContextCase *c, const DsvContextPart *part, unsigned char *all)
{
    int64_t row = part->heads * c->head_dim;
    for (int64_t i = 0; i < c->batch * c->tokens * row; i++) {
        int64_t head = part->head[i % row / c->head_dim];
        int64_t at = (i / row * c->heads + head) * c->head_dim + i % c->head_dim;
        dsvi_store(c->act, all, i, context_value(c, TENSOR, at));
    }
}

static DsvStatus together(DsvContext *context, const ContextCase *c, void *ignored)
{
    const DsvContextTensor tensor = {c->batch, c->head_dim, c->act};
    DsvContextPart part = dsvi_context_part(context, 0);
    size_t row = (size_t)(part.heads * c->head_dim) * dsvi_dtype_size(c->act);
    size_t bytes = (size_t)(c->batch * part.tokens) * row, used = (size_t)(c->batch * c->tokens) * row;
    size_t most = dsvi_context_all_room_bytes(context, &tensor);
    unsigned char *heads = take(bytes), *room = take(most), *wanted = take(used);
    uint64_t others = (uint64_t)(part.sequence_ranks - 1) * bytes, before = sent_in_all(&part);
    DsvStatus status = DSV_OK;
    (void)ignored;
    EXPECT(part.sequence_ranks == 1 || used <= most);
    context_fill(context, c, c->act, TENSOR, true, heads);
    fill_all(c, &part, wanted);

    unsigned char *all = dsvi_context_all_place(context, 0, heads, room);
    EXPECT(all == (part.sequence_ranks == 1 ? heads : room));
    DSVI_TRY_GOTO(status, dsvi_context_gather(context, 0, &tensor, heads, all), done);
    EXPECT(memcmp(all, wanted, used) == 0);
    EXPECT(sent_in_all(&part) - before == others);
    EXPECT(untouched(heads, bytes) && untouched(room, most));
done:
    free(heads);
    free(room);
    free(wanted);
    return status;
}

/* What a rank adds to element i of all tokens of its heads: sums of these are exact. */
static double addend(const DsvContextPart *part, int64_t sequence_index, int64_t i)
{
    return (double)((sequence_index + 1) * (i % 101 + 3) + part->head_index);
}

static DsvStatus sums(DsvContext *context, const ContextCase *c, void *ignored)
{
    const DsvContextTensor tensor = {c->batch, c->head_dim, c->act};
    DsvContextPart part = dsvi_context_part(context, 0);
    int64_t row = part.heads * c->head_dim, own = part.tokens * row, sample = c->tokens * row;
    size_t size = dsvi_dtype_size(c->act), bytes = (size_t)(c->batch * own) * size;
    size_t most = dsvi_context_all_room_bytes(context, &tensor);
    size_t staged = dsvi_context_sum_bytes(context);
    unsigned char *heads = take(bytes), *room = take(most), *workspace = take(staged);
    unsigned char *all = dsvi_context_all_place(context, 0, heads, room);
    uint64_t before = sent_in_all(&part), sent = (uint64_t)(c->batch * (sample - own)) * size;
    DsvStatus status = DSV_OK;
    (void)ignored;
    for (int64_t i = 0; i < c->batch * sample; i++)
        dsvi_store(c->act, all, i, addend(&part, part.sequence_index, i));
    DSVI_TRY_GOTO(status, dsvi_context_sum(context, 0, &tensor, all, heads, workspace), done);
    for (int64_t i = 0; i < c->batch * own; i++) {
        double wanted = 0;
        for (int64_t r = 0; r < part.sequence_ranks; r++)
            wanted += addend(&part, r, i / own * sample + part.first * row + i % own);
        EXPECT(dsvi_load(c->act, heads, i) == wanted);
    }
    EXPECT(sent_in_all(&part) - before == sent);
    EXPECT(untouched(heads, bytes) && untouched(room, most) && untouched(workspace, staged));
done:
    free(heads);
    free(room);
    free(workspace);
    return status;
}

static void try_case(const ContextCase *c)
{
    static const DsvDtype dtypes[] = {DSV_F32, DSV_BF16, DSV_F64};
    ContextCase other = *c;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        other.act = dtypes[i];
        run_context(&other, there_and_back, NULL);
        run_context(&other, together, NULL);
        if (other.act != DSV_BF16)
            run_context(&other, sums, NULL);
    }
}

static void moves(void **state)
{
    (void)state;
    for_context_cases(&backend, try_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(moves)};
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
