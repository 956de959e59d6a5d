/* Exchange of tokens for heads and back, gather and sum of heads forms: every element is in its place, no
 * byte outside the tensors is written, and the bytes sent equal the formulas of cp.h. */
#include "test.h"

#include "cp/cp_rig.h"
#include "cpu/cpu.h"

enum { GUARD = 64, TENSOR = 3 };

static DsviBackend backend;

/* Allocates `bytes` bytes and GUARD bytes after them, all 0xff. */
static unsigned char *allocate(size_t bytes)
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

static uint64_t sent_in_all(const DsviCpPart *part)
{
    return dsvi_comm_sent(part->head_device).bytes + dsvi_comm_sent(part->sequence_device).bytes;
}

/* Both forms of a tensor that is exchanged, and the expected contents. */
typedef struct Moved {
    DsviCpForms forms;
    unsigned char *tokens, *wanted, *room, *back;
} Moved;

static Moved open_moved(DsviCp *cp, const CpCase *c, int i, size_t bytes, size_t heads_bytes)
{
    Moved m = {.tokens = allocate(bytes),
               .wanted = allocate(heads_bytes),
               .room = allocate(heads_bytes),
               .back = allocate(bytes)};
    cp_fill(cp, c, c->act, TENSOR + i, false, m.tokens);
    cp_fill(cp, c, c->act, TENSOR + i, true, m.wanted);
    m.forms = (DsviCpForms){m.tokens, dsvi_cp_heads_address(cp, 0, m.tokens, m.room)};
    return m;
}

static void close_moved(Moved *m)
{
    free(m->tokens);
    free(m->wanted);
    free(m->room);
    free(m->back);
}

/* Exchanges `count` tensors in one call. */
static DsvStatus exchange_tensors(DsviCp *cp, const CpCase *c, int count)
{
    const DsviCpTensor tensor = {c->batch, c->head_dim, c->act};
    DsviCpPart part = dsvi_cp_part(cp, 0);
    size_t size = dsvi_dtype_size(c->act), bytes = dsvi_cp_tokens_bytes(cp, &tensor);
    size_t heads_bytes = dsvi_cp_heads_bytes(cp, &tensor);
    size_t staged = dsvi_cp_move_bytes(cp, &tensor);
    size_t used = (size_t)(c->batch * part.tokens * part.heads * c->head_dim) * size;
    unsigned char *workspace = allocate(staged);
    uint64_t own = (uint64_t)dsvi_cp_tokens(cp);
    uint64_t row = (uint64_t)(count * c->batch * c->head_dim) * size;
    DsviCpForms forms[DSVI_CP_TENSORS_MAX];
    Moved moved[DSVI_CP_TENSORS_MAX];
    DsvStatus status = DSV_OK;
    for (int i = 0; i < count; i++) {
        moved[i] = open_moved(cp, c, i, bytes, heads_bytes);
        forms[i] = moved[i].forms;
    }
    uint64_t before = sent_in_all(&part);
    DSVI_TRY_GOTO(status, dsvi_cp_to_heads(cp, 0, &tensor, forms, count, workspace), done);
    EXPECT(sent_in_all(&part) - before == own * (uint64_t)(c->heads - part.heads) * row);
    for (int i = 0; i < count; i++) {
        EXPECT(forms[i].heads == (c->head_ranks == 1 ? moved[i].tokens : moved[i].room));
        EXPECT(memcmp(forms[i].heads, moved[i].wanted, used) == 0);
        forms[i].tokens = moved[i].back;
        forms[i].heads = dsvi_cp_heads_address(cp, 0, moved[i].back, moved[i].room);
        if (forms[i].heads == moved[i].back)
            memcpy(moved[i].back, moved[i].wanted, used);
    }
    before = sent_in_all(&part);
    DSVI_TRY_GOTO(status, dsvi_cp_to_tokens(cp, 0, &tensor, forms, count, workspace), done);
    EXPECT(sent_in_all(&part) - before == ((uint64_t)part.tokens - own) * (uint64_t)part.heads * row);
    EXPECT(untouched(workspace, staged));
    for (int i = 0; i < count; i++) {
        EXPECT(memcmp(moved[i].back, moved[i].tokens, bytes) == 0);
        EXPECT(untouched(moved[i].tokens, bytes) && untouched(moved[i].back, bytes));
        EXPECT(untouched(moved[i].room, heads_bytes));
    }
done:
    free(workspace);
    for (int i = 0; i < count; i++)
        close_moved(&moved[i]);
    return status;
}

static DsvStatus there_and_back(DsviCp *cp, const CpCase *c, void *ignored)
{
    (void)ignored;
    for (int count = 1; count <= DSVI_CP_TENSORS_MAX; count++)
        DSVI_TRY(exchange_tensors(cp, c, count));
    return DSV_OK;
}

/* Fills the expected gathered tensor: all tokens of this rank's heads. */
static void fill_all(const CpCase *c, const DsviCpPart *part, unsigned char *all)
{
    int64_t row = part->heads * c->head_dim;
    for (int64_t i = 0; i < c->batch * c->tokens * row; i++) {
        int64_t head = part->head[i % row / c->head_dim];
        int64_t at = (i / row * c->heads + head) * c->head_dim + i % c->head_dim;
        dsvi_store(c->act, all, i, cp_value(c, TENSOR, at));
    }
}

static DsvStatus gathers(DsviCp *cp, const CpCase *c, void *ignored)
{
    const DsviCpTensor tensor = {c->batch, c->head_dim, c->act};
    DsviCpPart part = dsvi_cp_part(cp, 0);
    size_t row = (size_t)(part.heads * c->head_dim) * dsvi_dtype_size(c->act);
    size_t bytes = (size_t)(c->batch * part.tokens) * row, used = (size_t)(c->batch * c->tokens) * row;
    size_t room_bytes = dsvi_cp_gathered_bytes(cp, &tensor);
    unsigned char *heads = allocate(bytes), *room = allocate(room_bytes), *wanted = allocate(used);
    uint64_t others = (uint64_t)(part.sequence_ranks - 1) * bytes, before = sent_in_all(&part);
    DsvStatus status = DSV_OK;
    (void)ignored;
    EXPECT(part.sequence_ranks == 1 || used <= room_bytes);
    cp_fill(cp, c, c->act, TENSOR, true, heads);
    fill_all(c, &part, wanted);

    unsigned char *all = dsvi_cp_gathered_address(cp, 0, heads, room);
    EXPECT(all == (part.sequence_ranks == 1 ? heads : room));
    DSVI_TRY_GOTO(status, dsvi_cp_gather(cp, 0, &tensor, heads, all), done);
    EXPECT(memcmp(all, wanted, used) == 0);
    EXPECT(sent_in_all(&part) - before == others);
    EXPECT(untouched(heads, bytes) && untouched(room, room_bytes));
done:
    free(heads);
    free(room);
    free(wanted);
    return status;
}

/* The addend of a rank for element i of the gathered tensor. Small integers, so that sums are exact. */
static double addend(const DsviCpPart *part, int64_t sequence_index, int64_t i)
{
    return (double)((sequence_index + 1) * (i % 101 + 3) + part->head_index);
}

static DsvStatus sums(DsviCp *cp, const CpCase *c, void *ignored)
{
    const DsviCpTensor tensor = {c->batch, c->head_dim, c->act};
    DsviCpPart part = dsvi_cp_part(cp, 0);
    int64_t row = part.heads * c->head_dim, own = part.tokens * row, sample = c->tokens * row;
    size_t size = dsvi_dtype_size(c->act), bytes = (size_t)(c->batch * own) * size;
    size_t room_bytes = dsvi_cp_gathered_bytes(cp, &tensor);
    size_t staged = dsvi_cp_sum_bytes(cp);
    unsigned char *heads = allocate(bytes), *room = allocate(room_bytes), *workspace = allocate(staged);
    unsigned char *all = dsvi_cp_gathered_address(cp, 0, heads, room);
    uint64_t before = sent_in_all(&part), sent = (uint64_t)(c->batch * (sample - own)) * size;
    DsvStatus status = DSV_OK;
    (void)ignored;
    for (int64_t i = 0; i < c->batch * sample; i++)
        dsvi_store(c->act, all, i, addend(&part, part.sequence_index, i));
    DSVI_TRY_GOTO(status, dsvi_cp_sum(cp, 0, &tensor, all, heads, workspace), done);
    for (int64_t i = 0; i < c->batch * own; i++) {
        double wanted = 0;
        for (int64_t r = 0; r < part.sequence_ranks; r++)
            wanted += addend(&part, r, i / own * sample + part.first * row + i % own);
        EXPECT(dsvi_load(c->act, heads, i) == wanted);
    }
    EXPECT(sent_in_all(&part) - before == sent);
    EXPECT(untouched(heads, bytes) && untouched(room, room_bytes) && untouched(workspace, staged));
done:
    free(heads);
    free(room);
    free(workspace);
    return status;
}

static void try_case(const CpCase *c)
{
    static const DsviDtype dtypes[] = {DSVI_F32, DSVI_BF16, DSVI_F64};
    CpCase other = *c;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        other.act = dtypes[i];
        run_cp(&other, there_and_back, NULL);
        run_cp(&other, gathers, NULL);
        if (other.act != DSVI_BF16)
            run_cp(&other, sums, NULL);
    }
}

static void exchanges_are_exact(void **state)
{
    (void)state;
    for_cp_cases(&backend, try_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exchanges_are_exact)};
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
