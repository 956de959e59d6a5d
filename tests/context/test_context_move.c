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

static DsvStatus there_and_back(DsvContext *context, const ContextCase *c, void *ignored)
{
    const DsvContextTensor tensor = {c->batch, c->head_dim, c->act};
    DsvContextPart part = dsvi_context_part(context, 0);
    size_t size = dsvi_dtype_size(c->act), bytes = dsvi_context_tokens_bytes(context, &tensor);
    size_t most = dsvi_context_heads_bytes(context, &tensor);
    size_t staged = dsvi_context_move_bytes(context, &tensor);
    size_t used = (size_t)(c->batch * part.tokens * part.heads * c->head_dim) * size;
    unsigned char *tokens = take(bytes), *room = take(most), *workspace = take(staged), *wanted = take(most);
    unsigned char *back = take(bytes);
    uint64_t own = (uint64_t)dsvi_context_tokens(context), row = (uint64_t)(c->batch * c->head_dim) * size;
    uint64_t before = sent_in_all(&part);
    DsvStatus status = DSV_OK;
    (void)ignored;
    EXPECT(used <= most);
    context_fill(context, c, c->act, TENSOR, false, tokens);
    context_fill(context, c, c->act, TENSOR, true, wanted);

    unsigned char *heads = dsvi_context_heads_place(context, 0, tokens, room);
    EXPECT(heads == (c->head_ranks == 1 ? tokens : room));
    DSVI_TRY_GOTO(status, dsvi_context_to_heads(context, 0, &tensor, tokens, heads, workspace), done);
    EXPECT(memcmp(heads, wanted, used) == 0);
    EXPECT(sent_in_all(&part) - before == own * (uint64_t)(c->heads - part.heads) * row);

    before = sent_in_all(&part);
    heads = dsvi_context_heads_place(context, 0, back, room);
    if (heads == back)
        memcpy(back, wanted, used);
    DSVI_TRY_GOTO(status, dsvi_context_to_tokens(context, 0, &tensor, heads, back, workspace), done);
    EXPECT(memcmp(back, tokens, bytes) == 0);
    EXPECT(sent_in_all(&part) - before == ((uint64_t)part.tokens - own) * (uint64_t)part.heads * row);
    EXPECT(untouched(tokens, bytes) && untouched(back, bytes) && untouched(room, most));
    EXPECT(untouched(workspace, staged));
done:
    free(tokens);
    free(room);
    free(workspace);
    free(wanted);
    free(back);
    return status;
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
