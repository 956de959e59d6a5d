/* Arenas: the plan and the use are the same walk. */
#include "base/arena.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* A layout as the library writes them; fills each piece with its number when there is memory. */
static void lay_out(DsvArena *arena)
{
    static const size_t bytes[] = {1, 0, 63, 64, 65, 1000};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        unsigned char *piece = dsvi_arena_take(arena, (DsvMemClass)(i % 2), bytes[i]);
        assert_int_equal(piece != NULL, arena->base != NULL);
        assert_int_equal(((uintptr_t)piece - (uintptr_t)arena->base) % 256, 0);
        for (size_t j = 0; piece && j < bytes[i]; j++) {
            assert_int_equal(piece[j], 0); /* no other piece has it */
            piece[j] = (unsigned char)(i + 1);
        }
    }
}

static void plan_equals_use(void **state)
{
    DsvArena plan, bound;
    (void)state;
    dsvi_arena_plan(&plan);
    lay_out(&plan);
    assert_int_equal(plan.used, 256 + 0 + 256 + 256 + 256 + 1024);
    assert_int_equal(plan.by_class[0], 256 + 256 + 256);
    assert_int_equal(plan.by_class[1], 0 + 256 + 1024);

    void *memory = aligned_alloc(64, plan.used); /* no byte more: the sanitizer sees what goes beyond */
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
    DsvArena plan;
    (void)state;
    dsvi_arena_plan(&plan);
    dsvi_arena_take(&plan, DSV_MEM_SCRATCH, SIZE_MAX - 3);
    assert_true(plan.used == SIZE_MAX);
    dsvi_arena_take(&plan, DSV_MEM_SCRATCH, 100);
    assert_true(plan.used == SIZE_MAX && plan.by_class[DSV_MEM_SCRATCH] == SIZE_MAX);
}

/* Three uses of one place, the second of them of two nested ones, and pieces before and behind. */
static void uses_lie_over_each_other(void **state)
{
    enum { U = 256 };
    enum { BEFORE, FIRST, SECOND, SHORT, LONG, THIRD, BEHIND, PIECES };
    _Alignas(64) static unsigned char memory[9 * U];
    static const size_t wanted[PIECES] = {0, U, U, 2 * U, 2 * U, U, 6 * U};
    const unsigned char *piece[PIECES];
    DsvArena plan, arena;
    (void)state;
    for (int bound = 0; bound < 2; bound++) {
        if (bound)
            dsvi_arena_bind(&arena, memory, plan.used);
        else
            dsvi_arena_plan(&arena);
        piece[BEFORE] = dsvi_arena_take(&arena, DSV_MEM_DATA, U);
        DsvArenaOverlay over = dsvi_arena_overlay(&arena);
        piece[FIRST] = dsvi_arena_take(&arena, DSV_MEM_SCRATCH, 3 * U);
        dsvi_arena_instead(&arena, &over);
        piece[SECOND] = dsvi_arena_take(&arena, DSV_MEM_SPARSE, U);
        DsvArenaOverlay nested = dsvi_arena_overlay(&arena);
        piece[SHORT] = dsvi_arena_take(&arena, DSV_MEM_SCRATCH, U);
        dsvi_arena_instead(&arena, &nested);
        piece[LONG] = dsvi_arena_take(&arena, DSV_MEM_ACTIVATIONS, 4 * U);
        dsvi_arena_overlay_end(&arena, &nested);
        dsvi_arena_instead(&arena, &over);
        piece[THIRD] = dsvi_arena_take(&arena, DSV_MEM_SCRATCH, 2 * U);
        dsvi_arena_overlay_end(&arena, &over);
        piece[BEHIND] = dsvi_arena_take(&arena, DSV_MEM_DATA, 3 * U);
        plan = bound ? plan : arena;
    }
    assert_int_equal(arena.used, sizeof memory);
    for (int i = 0; i < PIECES; i++)
        assert_int_equal(piece[i] - memory, wanted[i]);
    assert_int_equal(arena.by_class[DSV_MEM_DATA], 4 * U);
    assert_int_equal(arena.by_class[DSV_MEM_SPARSE], U);
    assert_int_equal(arena.by_class[DSV_MEM_ACTIVATIONS], 4 * U);
    assert_int_equal(arena.by_class[DSV_MEM_SCRATCH], 0); /* none of the longest use */
    assert_memory_equal(arena.by_class, plan.by_class, sizeof plan.by_class);
}

static void every_class_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < DSV_MEM_CLASS_COUNT; i++)
        for (int j = 0; j <= i; j++) {
            assert_non_null(dsvi_mem_class_name((DsvMemClass)i));
            assert_int_equal(strcmp(dsvi_mem_class_name((DsvMemClass)i),
                                    dsvi_mem_class_name((DsvMemClass)j)) == 0,
                             i == j);
        }
}

/* In a child, whose abort is looked at. */
static void taking_more_than_bound_aborts(void **state)
{
    _Alignas(64) static unsigned char memory[512];
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        DsvArena arena;
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        dsvi_arena_bind(&arena, memory, sizeof memory);
        dsvi_arena_take(&arena, DSV_MEM_SCRATCH, 512);
        dsvi_arena_take(&arena, DSV_MEM_SCRATCH, 0);
        signal(SIGABRT, SIG_DFL);
        dsvi_arena_take(&arena, DSV_MEM_SCRATCH, 1);
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
