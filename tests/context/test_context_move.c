/* Tokens for heads and back: every element where it belongs, nothing beside it written, and as many bytes
 * sent as context.h says. */
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

static void try_case(const ContextCase *c)
{
    static const DsvDtype dtypes[] = {DSV_F32, DSV_BF16, DSV_F64};
    ContextCase other = *c;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        other.act = dtypes[i];
        run_context(&other, there_and_back, NULL);
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
