/* Arenas: a planning arena and an allocating arena compute the same layout. */
#include "base/arena.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* Takes buffers as the library does, and fills each with its number if the arena has memory. */
static void lay_out(DsviArena *arena)
{
    static const size_t bytes[] = {1, 0, 63, 64, 65, 1000};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        unsigned char *piece = dsvi_arena_take(arena, (DsviMemClass)(i % 2), bytes[i]);
        assert_int_equal(piece != NULL, arena->base != NULL);
        assert_int_equal(((uintptr_t)piece - (uintptr_t)arena->base) % 256, 0);
        for (size_t j = 0; piece && j < bytes[i]; j++) {
            assert_int_equal(piece[j], 0); /* no other buffer overlaps */
            piece[j] = (unsigned char)(i + 1);
        }
    }
}

static void plan_equals_use(void **state)
{
    DsviArena plan, bound;
    (void)state;
    dsvi_arena_plan(&plan);
    lay_out(&plan);
    assert_int_equal(plan.used, 256 + 0 + 256 + 256 + 256 + 1024);
    assert_int_equal(plan.by_class[0], 256 + 256 + 256);
    assert_int_equal(plan.by_class[1], 0 + 256 + 1024);

    void *memory = aligned_alloc(64, plan.used); /* exactly the planned bytes */
    assert_non_null(memory);
    memset(memory, 0, plan.used);
    dsvi_arena_bind(&bound, memory, plan.used);
    lay_out(&bound);
    assert_int_equal(bound.used, plan.used);
    assert_memory_equal(bound.by_class, plan.by_class, sizeof plan.by_class);
    free(memory);
}

static void absurd_plans_do_not_wrap(void **state)
{
    DsviArena plan;
    (void)state;
    dsvi_arena_plan(&plan);
    dsvi_arena_take(&plan, DSVI_MEM_SCRATCH, SIZE_MAX - 3);
    assert_true(plan.used == SIZE_MAX);
    dsvi_arena_take(&plan, DSVI_MEM_SCRATCH, 100);
    assert_true(plan.used == SIZE_MAX && plan.by_class[DSVI_MEM_SCRATCH] == SIZE_MAX);
}

/* Three alternative uses of the same bytes, the second with two nested uses, and buffers before and after. */
static void uses_lie_over_each_other(void **state)
{
    enum { U = 256 };
    enum { BEFORE, FIRST, SECOND, SHORT, LONG, THIRD, BEHIND, PIECES };
    _Alignas(64) static unsigned char memory[9 * U];
    static const size_t wanted[PIECES] = {0, U, U, 2 * U, 2 * U, U, 6 * U};
    const unsigned char *piece[PIECES];
    DsviArena plan, arena;
    (void)state;
    for (int bound = 0; bound < 2; bound++) {
        if (bound)
            dsvi_arena_bind(&arena, memory, plan.used);
        else
            dsvi_arena_plan(&arena);
        piece[BEFORE] = dsvi_arena_take(&arena, DSVI_MEM_DATA, U);
        DsviArenaOverlay over = dsvi_arena_overlay_begin(&arena);
        piece[FIRST] = dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, 3 * U);
        dsvi_arena_overlay_next(&arena, &over);
        piece[SECOND] = dsvi_arena_take(&arena, DSVI_MEM_SPARSE, U);
        DsviArenaOverlay nested = dsvi_arena_overlay_begin(&arena);
        piece[SHORT] = dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, U);
        dsvi_arena_overlay_next(&arena, &nested);
        piece[LONG] = dsvi_arena_take(&arena, DSVI_MEM_ACTIVATIONS, 4 * U);
        dsvi_arena_overlay_end(&arena, &nested);
        dsvi_arena_overlay_next(&arena, &over);
        piece[THIRD] = dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, 2 * U);
        dsvi_arena_overlay_end(&arena, &over);
        piece[BEHIND] = dsvi_arena_take(&arena, DSVI_MEM_DATA, 3 * U);
        plan = bound ? plan : arena;
    }
    assert_int_equal(arena.used, sizeof memory);
    for (int i = 0; i < PIECES; i++)
        assert_int_equal(piece[i] - memory, wanted[i]);
    assert_int_equal(arena.by_class[DSVI_MEM_DATA], 4 * U);
    assert_int_equal(arena.by_class[DSVI_MEM_SPARSE], U);
    assert_int_equal(arena.by_class[DSVI_MEM_ACTIVATIONS], 4 * U);
    assert_int_equal(arena.by_class[DSVI_MEM_SCRATCH], 0); /* the longest use has no scratch */
    assert_memory_equal(arena.by_class, plan.by_class, sizeof plan.by_class);
}

static void every_class_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < DSVI_MEM_CLASS_COUNT; i++)
        for (int j = 0; j <= i; j++) {
            assert_non_null(dsvi_mem_class_name((DsviMemClass)i));
            assert_int_equal(strcmp(dsvi_mem_class_name((DsviMemClass)i),
                                    dsvi_mem_class_name((DsviMemClass)j)) == 0,
                             i == j);
        }
}

/* Runs in a child process, whose abort is observed. */
static void taking_more_than_bound_aborts(void **state)
{
    _Alignas(64) static unsigned char memory[512];
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        DsviArena arena;
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        dsvi_arena_bind(&arena, memory, sizeof memory);
        dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, 512);
        dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, 0);
        signal(SIGABRT, SIG_DFL);
        dsvi_arena_take(&arena, DSVI_MEM_SCRATCH, 1);
        _exit(0);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_equals_use),
        cmocka_unit_test(uses_lie_over_each_other),
        cmocka_unit_test(absurd_plans_do_not_wrap),
        cmocka_unit_test(every_class_has_a_name),
        cmocka_unit_test(taking_more_than_bound_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
