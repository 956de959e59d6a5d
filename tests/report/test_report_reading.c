/* The page is readable on a narrow screen, with a screen reader, without a mouse, and without motion. The
 * test reads the page's text; it starts no browser. */
#include "test.h"

#include "fake_run.h"
#include "sample/video_writer.h"

/* Writes a run with every figure that the page can show, and a sampled clip. */
static char *full_page(const char **folder)
{
    enum { FRAMES = 5, SIDE = 32 };
    static float pixels[3 * FRAMES * SIDE * SIDE];
    char samples[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    *folder = fake_folder("run");
    fake_metrics(*folder, 100);
    fake_rest(*folder);
    assert_ok(dsvi_path_join(samples, *folder, "samples"));
    assert_ok(dsvi_folder_make(samples));
    assert_ok(dsvi_path_join(path, samples, "step-000100.mp4"));
    assert_ok(dsvi_video_write(path, pixels, FRAMES, SIDE, SIDE, 8));
    return fake_report(*folder, NULL);
}

/* Writes metrics.jsonl of `steps` lines, which differ in step and in the number that the format inserts, and
 * a configuration of as many steps. */
static void write_metrics(const char *folder, int steps, const char *format, double first, double each)
{
    char text[4096] = "";
    for (int step = 1; step <= steps; step++) {
        size_t used = strlen(text);
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"step\": %d, \"loss\": 1, ", step);
        snprintf(text + used, sizeof text - used, format, first + each * (step - 1));
    }
    fake_file(folder, "metrics.jsonl", text);
    snprintf(text, sizeof text, "max_train_steps: %d\n", steps);
    fake_file(folder, "config.yaml", text);
}

/* Each drawing has the role of an image and a description for screen readers. */
static void every_drawing_has_a_role_and_a_name(void **unused)
{
    (void)unused;
    const char *folder;
    char *page = full_page(&folder);
    int drawings = count_of(page, "<svg ");
    assert_true(drawings >= 9);
    assert_int_equal(count_of(page, "<div class=\"chart\""), drawings);
    for (const char *at = page; (at = strstr(at, "<div class=\"chart\"")); at++) {
        char *tag = strdup(text_between(at, "<div ", ">"));
        assert_holds(tag, "role=\"img\"");
        assert_true(strlen(text_between(tag, "aria-label=\"", "\"")) > 20);
        free(tag);
    }
    assert_holds(page, "aria-label=\"Loss by step, 1 to 100. training, each step: first 2.000, ");
    assert_holds(page, "aria-label=\"Captured mass, by block and head: from ");
    assert_int_equal(count_of(page, "role=\"img\""), drawings + 1); /* plus the clip's frames */
    free(page);
    fake_remove(folder);
}

/* Each chart has a table that the keyboard reaches; the table of losses begins and ends with the run. */
static void every_chart_has_its_values_as_a_table(void **unused)
{
    (void)unused;
    char row[128];
    const char *folder;
    char *page = full_page(&folder);
    int figures = count_of(page, "<figure>");
    assert_int_equal(figures, count_of(page, "<svg "));
    for (const char *at = page; (at = strstr(at, "<figure>")); at++) {
        char *figure = strdup(text_between(at, "<figure>", "</figure>"));
        assert_holds(figure, "<details><summary>Values");
        assert_holds(figure, "<table>");
        assert_holds(figure, "<td class=\"n\">");
        free(figure);
    }
    char *loss = strdup(text_between(page, "<section id=\"loss\">", "</section>"));
    assert_holds(loss, "<th scope=\"row\">1</th><td class=\"n\">2.000</td>");
    snprintf(row, sizeof row, "<th scope=\"row\">100</th><td class=\"n\">%.4f</td>", fake_loss(100));
    assert_holds(loss, row);
    assert_holds(loss, "<td class=\"n\">0.6250</td>"); /* the held-out loss, at its step */
    free(loss);
    char *heads = strdup(text_between(page, "<section id=\"heads\">", "</section>"));
    snprintf(row, sizeof row, "<th scope=\"row\">2</th><td class=\"n\">%.4f</td><td class=\"n\">%.4f</td>",
             fake_captured(100, 2, 0), fake_captured(100, 2, 1));
    assert_holds(heads, row);
    free(heads);
    free(page);
    fake_remove(folder);
}

/* On the narrowest screens each horizontal axis shows at least one label, and no more labels than fit.
 * Drawings contain no text, which would shrink with them. */
static void labels_keep_their_size_at_every_width(void **unused)
{
    (void)unused;
    const char *folder;
    char *page = full_page(&folder);
    assert_lacks(page, "<text");
    assert_int_equal(count_of(page, "preserveAspectRatio=\"none\""), count_of(page, "<svg "));
    assert_holds(page, "@container (min-width:");
    for (const char *at = page; (at = strstr(at, "<div class=\"drawing\"")); at++) {
        char *drawing = strdup(text_between(at, "<div class=\"drawing\"", "</div>"));
        int narrow = count_of(drawing, "<span class=\"x t0\""), wide = count_of(drawing, "<span class=\"x ");
        if (narrow < 1 || narrow > 10) /* this many labels of two digits fit into 240 pixels */
            fail_msg("%d labels on a narrow screen: %s", narrow, drawing);
        assert_true(wide >= narrow && wide <= 16);
        assert_true(count_of(drawing, "<span class=\"y\"") >= 2);
        free(drawing);
    }
    free(page);
    fake_remove(folder);
}

static void every_axis_has_a_title(void **unused)
{
    (void)unused;
    const char *folder;
    char *page = full_page(&folder);
    assert_int_equal(count_of(page, "<span class=\"axis\">"), count_of(page, "<svg "));
    assert_int_equal(count_of(page, "<span class=\"axis across\">"), count_of(page, "<svg "));
    assert_holds(page, "<span class=\"axis\">gradient norm</span>");
    assert_holds(page, "<span class=\"axis across\">step</span>");
    free(page);
    fake_remove(folder);
}

static void ticks_of_few_steps_are_whole_steps(void **unused)
{
    (void)unused;
    static const char *const label[] = {"1", "2", "3", "4", "5", "6"};
    char text[32];
    const char *folder = fake_folder("run");
    write_metrics(folder, 6, "\"lr\": %g}\n", 1, 1);
    char *page = fake_report(folder, NULL);
    char *loss = strdup(text_between(page, "<section id=\"loss\">", "</section>"));
    assert_int_equal(count_of(loss, "<span class=\"x "), 6);
    for (int i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "%s%%\">%s</span>", i == 0 ? "0.00" : i == 5 ? "100.00" : "", label[i]);
        assert_holds(loss, i == 0 || i == 5 ? text : strchr(text, '>'));
    }
    free(loss);
    free(page);
    fake_remove(folder);
}

/* Constant memory and learning rate are shown as figures; if they vary, as charts. */
static void what_does_not_change_is_a_figure(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    write_metrics(folder, 10, "\"lr\": 0.0001, \"memory_bytes\": %.0f}\n", 209715200, 100000);
    char *page = fake_report(folder, NULL);
    char *memory = strdup(text_between(page, "<section id=\"memory\">", "</section>"));
    assert_lacks(memory, "<svg");
    assert_holds(memory, "<p class=\"figure\"><b>201 MiB</b> in use at most, never less than 200 MiB</p>");
    assert_holds(page, "<p class=\"figure\"><b>0.0001</b> at every step</p>");
    free(memory);
    free(page);
    write_metrics(folder, 10, "\"lr\": 0.0001, \"memory_bytes\": %.0f}\n", 209715200, 10000000);
    page = fake_report(folder, NULL);
    memory = strdup(text_between(page, "<section id=\"memory\">", "</section>"));
    assert_holds(memory, "<svg");
    assert_holds(memory, "<span class=\"axis\">MiB</span>");
    free(memory);
    free(page);
    fake_remove(folder);
}

/* A run of one step is drawn as a point, not as a line without length. */
static void a_run_of_one_step_shows_a_point(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    write_metrics(folder, 1, "\"lr\": %g}\n", 1, 1);
    char *page = fake_report(folder, NULL);
    assert_holds(page, "Finished after 1 step, which took");
    char *loss = strdup(text_between(page, "<section id=\"loss\">", "</section>"));
    assert_holds(loss, "<path class=\"dots s0\" d=\"M500.0 ");
    free(loss);
    free(page);
    fake_remove(folder);
}

/* Clips have controls, and only the script starts them, after it checks the user's preference for motion. */
static void clips_respect_a_wish_for_less_motion(void **unused)
{
    (void)unused;
    const char *folder;
    char *page = full_page(&folder);
    char *video = strdup(text_between(page, "<video ", "src="));
    assert_holds(video, "controls");
    assert_holds(video, "aria-label=\"step-000100.mp4\"");
    assert_lacks(video, "autoplay");
    const char *asked = strstr(page, "matchMedia('(prefers-reduced-motion: reduce)').matches)");
    const char *start = strstr(page, ".play()");
    assert_true(asked && start && asked < start);
    assert_int_equal(count_of(page, ".play()"), 1);
    free(video);
    free(page);
    fake_remove(folder);
}

static void what_scrolls_takes_the_focus(void **unused)
{
    (void)unused;
    const char *folder;
    char *page = full_page(&folder);
    static const char reachable[] = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"";
    int regions = count_of(page, "<div class=\"scroll\"");
    assert_true(regions > 1);
    assert_int_equal(count_of(page, reachable), regions);
    assert_holds(page, "aria-label=\"Decisions\"");
    free(page);
    fake_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_drawing_has_a_role_and_a_name),
        cmocka_unit_test(every_chart_has_its_values_as_a_table),
        cmocka_unit_test(labels_keep_their_size_at_every_width),
        cmocka_unit_test(every_axis_has_a_title),
        cmocka_unit_test(ticks_of_few_steps_are_whole_steps),
        cmocka_unit_test(what_does_not_change_is_a_figure),
        cmocka_unit_test(a_run_of_one_step_shows_a_point),
        cmocka_unit_test(clips_respect_a_wish_for_less_motion),
        cmocka_unit_test(what_scrolls_takes_the_focus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
