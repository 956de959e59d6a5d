/* Folders, lists and caches as data sets: which clips are used, skipped and refused. */
#include "data/dataset.h"

#include "base/scratch.h"
#include "clip_maker.h"
#include "data/dataset_list.h"
#include "data/latent_cache.h"

static int make_clips(void **state)
{
    if (scratch_make(state) != 0)
        return 1;
    make_stamped("libx264", scratch_path("one.mp4"), 0, 30, 30);
    make_stamped("mpeg4", scratch_path("two.avi"), 0, 60, 30);
    return 0;
}

static DsvConfig settings_of(int64_t side)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.height = settings.width = side;
    settings.num_frames = 5;
    return settings;
}

static void copy_file(const char *from, const char *to)
{
    char *data;
    size_t bytes;
    assert_ok(dsvi_file_read(from, (size_t)1 << 24, &data, &bytes));
    write_bytes(to, data, bytes);
    free(data);
}

static void check_item(const DsviDataset *d, int64_t i, const char *path, const char *text)
{
    assert_true(i < d->count);
    assert_string_equal(d->items[i].path, path);
    assert_int_equal(d->items[i].captions.count, text ? 1 : 0);
    if (text)
        assert_string_equal(d->items[i].captions.at[0].text, text);
}

static void a_folder_gives_its_clips_and_captions(void **state)
{
    (void)state;
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    assert_ok(dsvi_folder_make(scratch_path("folder/inner/deeper")));
    copy_file(scratch_path("one.mp4"), scratch_path("folder/b.MP4"));
    copy_file(scratch_path("two.avi"), scratch_path("folder/a.avi"));
    copy_file(scratch_path("one.mp4"), scratch_path("folder/inner/c.m4v"));
    copy_file(scratch_path("one.mp4"), scratch_path("folder/inner/deeper/never.mp4"));
    write_text(scratch_path("folder/a.txt"), "\n  a dog,\n  running \n\n");
    write_text(scratch_path("folder/b.txt"), " \n");
    write_text(scratch_path("folder/notes.txt"), "beside no clip");
    write_text(scratch_path("folder/broken.mp4"), "no clip");
    write_text(scratch_path("folder/empty.mkv"), "");
    write_text(scratch_path("folder/page.html"), "ignored");
    assert_ok(dsvi_dataset_open(scratch_path("folder"), &settings, &d));
    assert_int_equal(d->count, 3);
    assert_false(d->latents);
    check_item(d, 0, scratch_path("folder/a.avi"), "a dog,\n  running");
    check_item(d, 1, scratch_path("folder/b.MP4"), NULL);
    check_item(d, 2, scratch_path("folder/inner/c.m4v"), NULL);
    assert_int_equal(d->items[0].info.frames, 60);
    assert_int_equal(d->items[1].info.frames, 30);
    assert_int_equal(d->left_out_count, 2);
    assert_non_null(strstr(d->left_out[0].reason, "broken.mp4: not a video file"));
    assert_non_null(strstr(d->left_out[1].reason, "empty.mkv: the file is empty"));
    assert_string_equal(d->left_out[1].path, scratch_path("folder/empty.mkv"));
    assert_int_equal(d->remark_count, 2);
    assert_non_null(strstr(d->remarks[0], "b.txt: empty, expected the text of a caption"));
    assert_non_null(strstr(d->remarks[1], "notes.txt: no clip has the name of this file"));
    assert_int_equal(d->caption_files.found, 3);
    assert_int_equal(d->caption_files.used, 1);
    assert_int_equal(d->caption_files.unusable, 1);
    assert_int_equal(d->caption_files.alone, 1);
    dsvi_dataset_close(&d);
    assert_null(d);
    dsvi_dataset_close(&d);

    assert_ok(dsvi_dataset_open(scratch_path("folder/a.avi"), &settings, &d));
    assert_int_equal(d->count, 1);
    check_item(d, 0, scratch_path("folder/a.avi"), "a dog,\n  running");
    dsvi_dataset_close(&d);
}

/* The clip is used nevertheless. */
static void captions_that_are_no_text_are_left_out(void **state)
{
    (void)state;
    enum { LONG = (1 << 20) + 1 };
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    char *text = malloc(LONG);
    memset(text, 'x', LONG);
    assert_ok(dsvi_folder_make(scratch_path("captions")));
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "captions/%d.mp4", i);
        copy_file(scratch_path("one.mp4"), scratch_path(name));
    }
    write_bytes(scratch_path("captions/0.txt"), text, LONG);
    write_text(scratch_path("captions/1.txt"), "un caf\xe9");
    write_text(scratch_path("captions/2.txt"), "un caf\xc3\xa9");
    assert_ok(dsvi_dataset_open(scratch_path("captions"), &settings, &d));
    assert_int_equal(d->count, 3);
    assert_int_equal(d->left_out_count, 0);
    assert_int_equal(d->items[0].captions.count, 0);
    assert_int_equal(d->items[1].captions.count, 0);
    assert_string_equal(d->items[2].captions.at[0].text, "un caf\xc3\xa9");
    assert_int_equal(d->remark_count, 2);
    assert_non_null(strstr(d->remarks[0], "a caption is left out: "));
    assert_non_null(strstr(d->remarks[0], "0.txt"));
    assert_non_null(strstr(d->remarks[1], "1.txt: not UTF-8, expected the text of a caption"));
    dsvi_dataset_close(&d);
    write_text(scratch_path("list.csv"), "path,text\none.mp4,caf\xe9\n");
    assert_ok(dsvi_dataset_open(scratch_path("list.csv"), &settings, &d));
    assert_int_equal(d->items[0].captions.count, 0);
    assert_int_equal(d->remark_count, 1);
    dsvi_dataset_close(&d);
    free(text);
}

/* The file that belongs to a clip is found for stems that contain dots or differ in their endings only. */
static void caption_files_belong_to_stems(void **state)
{
    (void)state;
    static const char *const CLIPS[] = {"a.b.mp4", "a.mp4", "a-c.mp4", "d.mkv", "d.mp4", "e.mp4"};
    static const char ZERO[] = "a\0b", MARKED[] = "\xef\xbb\xbf caption of e\r\n";
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    assert_ok(dsvi_folder_make(scratch_path("stems")));
    for (size_t i = 0; i < sizeof CLIPS / sizeof *CLIPS; i++) {
        char name[32];
        snprintf(name, sizeof name, "stems/%s", CLIPS[i]);
        copy_file(scratch_path("one.mp4"), scratch_path(name));
    }
    write_text(scratch_path("stems/a.txt"), "caption of a");
    write_text(scratch_path("stems/a.b.TXT"), "caption of a.b");
    write_text(scratch_path("stems/a.mp4.txt"), "of no clip");
    write_text(scratch_path("stems/d.txt"), "caption of d");
    write_bytes(scratch_path("stems/a-c.txt"), ZERO, sizeof ZERO - 1);
    write_text(scratch_path("stems/e.txt"), MARKED);
    assert_ok(dsvi_dataset_open(scratch_path("stems"), &settings, &d));
    check_item(d, 0, scratch_path("stems/a-c.mp4"), NULL);
    check_item(d, 1, scratch_path("stems/a.b.mp4"), "caption of a.b");
    check_item(d, 2, scratch_path("stems/a.mp4"), "caption of a");
    check_item(d, 3, scratch_path("stems/d.mkv"), "caption of d");
    check_item(d, 4, scratch_path("stems/d.mp4"), "caption of d");
    check_item(d, 5, scratch_path("stems/e.mp4"), "caption of e");
    assert_int_equal(d->remark_count, 2);
    assert_non_null(strstr(d->remarks[0], "a-c.txt: not UTF-8"));
    assert_non_null(strstr(d->remarks[1], "a.mp4.txt: no clip has the name"));
    assert_int_equal(d->caption_files.found, 6);
    assert_int_equal(d->caption_files.used, 4);
    dsvi_dataset_close(&d);
}

/* A property that is not converted is reported once per clip, with the clip's name; a clip that cannot be
 * converted is skipped. */
static void odd_pictures_are_remarked_upon(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arguments, *words; /* words: NULL for none */
    } KINDS[] = {
        {"a.mp4", "-c:v libx264", NULL},
        {"b.mp4", "-c:v libx264 -flags +ilme+ildct -x264-params tff=1", "interlaced"},
        {"c.mp4", "-c:v libx264 -color_trc smpte2084 -color_primaries bt709", "PQ or HLG"},
        {"d.mp4", "-c:v libx264 -color_trc arib-std-b67 -color_primaries bt709", "PQ or HLG"},
        {"e.mp4", "-c:v libx264 -color_trc bt709 -color_primaries bt2020", "wider than BT.709's"},
        {"f.mov", "-c:v qtrle -pix_fmt argb", "transparency"},
        {"g.mp4", "-c:v libx264 -colorspace bt2020nc", NULL},
        {"h.mp4", "-c:v libx264 -colorspace ycgco", "left out"},
    };
    enum { COUNT = sizeof KINDS / sizeof *KINDS };
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    assert_ok(dsvi_folder_make(scratch_path("odd")));
    for (int i = 0; i < COUNT; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "-i one.mp4 %s odd/%s", KINDS[i].arguments, KINDS[i].name);
        run_ffmpeg(arguments);
    }
    assert_ok(dsvi_dataset_open(scratch_path("odd"), &settings, &d));
    assert_int_equal(d->count, COUNT - 1);
    assert_int_equal(d->left_out_count, 1);
    assert_non_null(strstr(d->left_out[0].reason, "h.mp4: colours stored as ycgco"));
    int64_t told = 0;
    for (int i = 0; i < COUNT - 1; i++) {
        if (!KINDS[i].words)
            continue;
        assert_true(told < d->remark_count);
        assert_non_null(strstr(d->remarks[told], KINDS[i].name));
        assert_non_null(strstr(d->remarks[told++], KINDS[i].words));
    }
    assert_int_equal(told, d->remark_count);
    dsvi_dataset_close(&d);
}

static void nothing_usable_is_said_with_a_reason(void **state)
{
    (void)state;
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    assert_fails(DSV_E_NOT_FOUND, "no such file or folder",
                 dsvi_dataset_open(scratch_path("x"), &settings, &d));
    assert_fails(DSV_E_USAGE, "data.path is empty", dsvi_dataset_open("", &settings, &d));
    assert_ok(dsvi_folder_make(scratch_path("bare")));
    assert_fails(DSV_E_NOT_FOUND, "no usable clip", dsvi_dataset_open(scratch_path("bare"), &settings, &d));
    write_text(scratch_path("bare/one.mp4"), "no clip");
    write_text(scratch_path("bare/two.mp4"), "");
    assert_fails(DSV_E_NOT_FOUND,
                 "2 tried, the first: ", dsvi_dataset_open(scratch_path("bare"), &settings, &d));
    assert_non_null(strstr(dsv_error_message(), "one.mp4: not a video file"));
    write_text(scratch_path("bare/readme"), "x");
    assert_fails(DSV_E_USAGE, "neither a folder",
                 dsvi_dataset_open(scratch_path("bare/readme"), &settings, &d));
    assert_null(d);
    settings = settings_of(8);
    settings.width = 16384; /* 40 x 40 would have to become 16384 x 16384: large, but possible */
    assert_ok(dsvi_dataset_open(scratch_path("one.mp4"), &settings, &d));
    dsvi_dataset_close(&d);
}

/* Rows of a list, as "path<picture*repeats|caption|caption..." and a newline each. */
static DsvStatus note_row(void *context, const DsviListRow *row)
{
    char *rows = context;
    const DsviCaptions *captions = &row->captions;
    sprintf(rows + strlen(rows), "%s%s%s", row->path, row->image ? "<" : "", row->image ? row->image : "");
    if (row->repeats != 1)
        sprintf(rows + strlen(rows), "*%d", (int)row->repeats);
    if (row->weight != 1)
        sprintf(rows + strlen(rows), "@%g", row->weight);
    for (int64_t i = 0; i < captions->count; i++)
        sprintf(rows + strlen(rows), "|%s", captions->at[i].text);
    strcat(rows, captions->count ? "\n" : "|-\n");
    return DSV_OK;
}

static void check_list(const char *name, const char *content, const char *wanted)
{
    char rows[4096] = "";
    write_text(scratch_path(name), content);
    assert_ok(dsvi_list_read(scratch_path(name), note_row, rows));
    assert_string_equal(rows, wanted);
}

static void check_list_fails(const char *name, const char *content, const char *words)
{
    char rows[4096] = "";
    write_text(scratch_path(name), content);
    assert_fails(DSV_E_FORMAT, words, dsvi_list_read(scratch_path(name), note_row, rows));
    assert_non_null(strstr(dsv_error_message(), name));
}

static void csv_is_read_as_rfc_4180_has_it(void **state)
{
    (void)state;
    check_list("image.csv", "video,Image,text\na.mp4,a.png,x\nb.mp4,,\n", "a.mp4<a.png|x\nb.mp4|-\n");
    check_list("image.jsonl",
               "{\"path\": \"a.mp4\", \"image\": \"a.png\"}\n{\"path\": \"b.mp4\", \"image\": \"\"}\n"
               "{\"path\": \"c.mp4\", \"image\": null}\n",
               "a.mp4<a.png|-\nb.mp4|-\nc.mp4|-\n");
    check_list_fails("image.jsonl", "{\"path\": \"a.mp4\", \"image\": 3}\n", "image is not a string");
    check_list("l.csv", "path,text\na.mp4,a dog\nb.mp4,\n", "a.mp4|a dog\nb.mp4|-\n");
    check_list("l.csv", "path\na.mp4\n\nb.mp4", "a.mp4|-\nb.mp4|-\n");
    check_list("l.csv",
               "\xef\xbb\xbfid,Video,size,Caption\r\n1,a.mp4,9,\"one, two\"\r\n2,\"b \"\"x\"\".mp4\",8,\r\n",
               "a.mp4|one, two\nb \"x\".mp4|-\n");
    check_list("l.csv", "prompt,file_name\n\"two\nlines\",\"a.mp4\"\n\"\",b.mp4",
               "a.mp4|two\nlines\nb.mp4|-\n");
    check_list("l.csv", "video,path,caption,text\nv,p,c,t\n", "p|t\n");
    check_list("l.csv", "path,text\na.mp4,6\" long\n", "a.mp4|6\" long\n");
    check_list("l.csv", "path,text\na.mp4,\"ends here\"", "a.mp4|ends here\n");
    check_list("l.csv", "path,text\n", "");
    check_list("L.CSV", "path\na\n", "a|-\n");
    check_list("l.csv", "text,path,Text\none,a,two\n,b,three\n,c,\n", "a|one|two\nb|three\nc|-\n");
    check_list("l.csv", "caption,path,caption_2,text_x,caption_,caption_10\n1,a,2,x,y,3\n", "a|1|2|3\n");
    check_list("l.csv", "caption,caption_2,text,path\nc,d,t,a\n", "a|t\n");
    check_list("l.csv", "Repeats,path\n3,a\n,b\n 1000 ,c\n", "a*3|-\nb|-\nc*1000|-\n");
}

static void csv_errors_name_the_line(void **state)
{
    (void)state;
    check_list_fails("l.csv", "", ".csv:1: no column named path, video or file_name");
    check_list_fails("l.csv", "a.mp4,a dog\n",
                     ".csv:1: no column named path, video or file_name in the header row, which has: "
                     "a.mp4, a dog");
    check_list_fails("l.csv", "path,text\na,b\na,b,c\n", ".csv:3: 3 fields, expected 2");
    check_list_fails("l.csv", "path,text\na,\"b\nc\"\nd\n", ".csv:4: 1 fields, expected 2");
    check_list_fails("l.csv", "path,text\na,b\nc,\"open\nand on\n",
                     ".csv:3: a quote is opened and never closed");
    check_list_fails("l.csv", "path,text\na,\"open\"\"", ".csv:2: a quote is opened and never closed");
    check_list_fails("l.csv", "path,text\na,\"b\"c\n", ".csv:2: text follows a closing quote");
    check_list_fails("l.csv", "path,text\n,b\n", ".csv:2: no path");
    char many[65 * 5 + 8] = "path";
    for (int i = 0; i < 65; i++)
        strcat(many, ",text");
    check_list_fails("l.csv", "path,repeats\na,2\nb,2.5\n",
                     ".csv:3: repeats is '2.5', expected a whole number from 1 to 1000000");
    check_list_fails("l.csv", "path,repeats\na,0\n", ".csv:2: repeats is '0'");
    check_list_fails("l.csv", "path,repeats\na,99999999999999999999\n", ".csv:2: repeats is '9999");
    check_list_fails("l.csv", "path,repeats\na,often\n", ".csv:2: repeats is 'often'");
    check_list("l.csv", "path,weight,repeats\na,0.5,2\nb,,\n", "a*2@0.5|-\nb|-\n");
    check_list_fails("l.csv", "path,weight\na,-1\n", ".csv:2: weight is '-1', expected a number above 0");
    check_list_fails("l.csv", "path,weight\na,0\n", ".csv:2: weight is '0'");
    check_list_fails("l.csv", "path,weight\na,nan\n", ".csv:2: weight is 'nan'");
    check_list_fails("l.csv", "path,weight\na,1e999\n", ".csv:2: weight is '1e999'");
    check_list_fails("l.csv", "path,weight\na,much\n", ".csv:2: weight is 'much'");
    check_list_fails("l.csv", many, ".csv:1: more than 64 columns of captions");
    write_bytes(scratch_path("l.csv"), "path\na\0b\n", 9);
    char rows[64] = "";
    assert_fails(DSV_E_FORMAT, "zero byte", dsvi_list_read(scratch_path("l.csv"), note_row, rows));
}

static void jsonl_is_read_line_by_line(void **state)
{
    (void)state;
    check_list("l.jsonl",
               "{\"path\": \"a.mp4\", \"text\": \"say \\\"hi\\\"\"}\n\n  \r\n"
               "{\"file_name\":\"b.mp4\",\"n\":[1,{}]}\r\n{\"video\":\"c\",\"prompt\":null,\"caption\":\"\"}",
               "a.mp4|say \"hi\"\nb.mp4|-\nc|-\n");
    check_list("l.jsonl", "{\"video\":\"v\",\"path\":\"p\",\"prompt\":\"x\",\"text\":\"t\"}\n", "p|t\n");
    check_list("l.jsonl", "", "");
    check_list("l.jsonl", "{\"path\":\"a\",\"caption\":[\"x\",\"\",\"y\"]}\n{\"path\":\"b\",\"text\":[]}",
               "a|x|y\nb|-\n");
    check_list_fails("l.jsonl", "{\"path\":\"a\"}\n{\"path\":\"b\"\n", ".jsonl:2: not a JSON object");
    check_list_fails("l.jsonl", "[\"a\"]\n", ".jsonl:1: not a JSON object");
    check_list_fails("l.jsonl", "{\"path\":\"a\"} {}\n", ".jsonl:1: not a JSON object");
    check_list_fails("l.jsonl", "\n{\"path\":7}\n", ".jsonl:2: path is not a string");
    check_list_fails("l.jsonl", "{\"path\":\"a\",\"text\":[\"x\",7]}\n",
                     ".jsonl:1: text is neither a string nor an array of strings");
    check_list_fails("l.jsonl", "{\"path\":\"a\"}\n{\"path\":\"a\",\"text\":\"x\",\"text\":\"y\"}\n",
                     ".jsonl:2: the key text is there twice");
    check_list("l.jsonl", "{\"path\":\"a\",\"weight\":0.25}\n{\"path\":\"b\",\"weight\":null}",
               "a@0.25|-\nb|-\n");
    check_list_fails("l.jsonl", "{\"path\":\"a\",\"weight\":-2}\n", ".jsonl:1: weight is '-2'");
    check_list_fails("l.jsonl", "{\"path\":\"a\",\"weight\":\"2\"}\n", ".jsonl:1: weight is 'no number'");
    check_list_fails("l.jsonl", "{\"text\":\"a\"}\n", ".jsonl:1: no path, video or file_name");
}

static void a_list_is_read_relative_to_itself(void **state)
{
    (void)state;
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    char list[2 * DSVI_PATH_MAX];
    assert_ok(dsvi_folder_make(scratch_path("lists")));
    snprintf(list, sizeof list, "path,text\n../one.mp4,first\n%s,\nmissing.mp4,gone\n",
             scratch_path("two.avi"));
    write_text(scratch_path("lists/l.csv"), list);
    assert_ok(dsvi_dataset_open(scratch_path("lists/l.csv"), &settings, &d));
    assert_int_equal(d->count, 2);
    check_item(d, 0, scratch_path("lists/../one.mp4"), "first");
    check_item(d, 1, scratch_path("two.avi"), NULL);
    assert_int_equal(d->left_out_count, 1);
    assert_non_null(strstr(d->left_out[0].reason, "missing.mp4: No such file"));
    dsvi_dataset_close(&d);
    write_text(scratch_path("lists/l.csv"), "path\n");
    assert_fails(DSV_E_NOT_FOUND, "the list is empty",
                 dsvi_dataset_open(scratch_path("lists/l.csv"), &settings, &d));
    write_text(scratch_path("lists/l.csv"), "file\n");
    assert_fails(DSV_E_FORMAT, "l.csv:1:", dsvi_dataset_open(scratch_path("lists/l.csv"), &settings, &d));
}

static void a_latent_cache_is_a_data_set(void **state)
{
    (void)state;
    DsvConfig settings = settings_of(32);
    DsviLatentCache *cache;
    DsviDataset *d;
    const int64_t shape[4] = {1, 1, 2, 2};
    const float latent[4] = {1, 2, 3, 4};
    DsviClipWindow window = {.fps = settings.fps, .frames = 5, .height = 32, .width = 32};
    assert_ok(dsvi_latent_cache_create(scratch_path("cache"), &settings, NULL, &cache));
    const DsviLatentSource sources[] = {
        {.path = "b.mp4", .captions = &(const DsviCaptions){&(DsviCaption){.text = "second"}, 1}},
        {.path = "a.mp4"},
        {.path = "c.mp4"},
    };
    for (int i = 0; i < 3; i++)
        assert_ok(dsvi_latent_cache_put(cache, &sources[i], &window, shape, latent));
    assert_ok(dsvi_latent_cache_flush(cache));
    assert_int_equal(remove(dsvi_latent_cache_file(cache, 2)), 0);
    dsvi_latent_cache_close(&cache);
    assert_ok(dsvi_dataset_open(scratch_path("cache"), &settings, &d));
    assert_true(d->latents);
    assert_int_equal(d->count, 2);
    assert_int_equal(d->items[0].captions.count, 0);
    assert_string_equal(d->items[1].captions.at[0].text, "second");
    assert_int_equal(d->left_out_count, 1);
    assert_true(dsvi_dataset_sample(d, &settings, 7).item < 2);
    dsvi_dataset_close(&d);
    settings.height = 64;
    assert_fails(DSV_E_USAGE, "height 32, expected 64",
                 dsvi_dataset_open(scratch_path("cache"), &settings, &d));
}

static uint64_t hash_of(const char *path)
{
    DsvConfig settings = settings_of(32);
    DsviDataset *d;
    assert_ok(dsvi_dataset_open(path, &settings, &d));
    uint64_t hash = dsvi_dataset_fingerprint(d).hash;
    dsvi_dataset_close(&d);
    return hash;
}

/* The same clips in another folder match; clips with one renamed, replaced or removed do not. */
static void the_hash_tells_lists_apart(void **state)
{
    (void)state;
    assert_ok(dsvi_folder_make(scratch_path("here")));
    assert_ok(dsvi_folder_make(scratch_path("there")));
    copy_file(scratch_path("one.mp4"), scratch_path("here/a.mp4"));
    copy_file(scratch_path("two.avi"), scratch_path("here/b.avi"));
    copy_file(scratch_path("one.mp4"), scratch_path("there/a.mp4"));
    copy_file(scratch_path("two.avi"), scratch_path("there/b.avi"));
    uint64_t here = hash_of(scratch_path("here"));
    assert_true(hash_of(scratch_path("there")) == here);
    assert_int_equal(rename(scratch_path("there/a.mp4"), scratch_path("there/aa.mp4")), 0);
    assert_true(hash_of(scratch_path("there")) != here);
    assert_int_equal(rename(scratch_path("there/aa.mp4"), scratch_path("there/a.mp4")), 0);
    copy_file(scratch_path("one.mp4"), scratch_path("there/b.avi"));
    assert_true(hash_of(scratch_path("there")) != here);
    assert_int_equal(remove(scratch_path("there/b.avi")), 0);
    assert_true(hash_of(scratch_path("there")) != here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_gives_its_clips_and_captions),
        cmocka_unit_test(captions_that_are_no_text_are_left_out),
        cmocka_unit_test(caption_files_belong_to_stems),
        cmocka_unit_test(odd_pictures_are_remarked_upon),
        cmocka_unit_test(nothing_usable_is_said_with_a_reason),
        cmocka_unit_test(csv_is_read_as_rfc_4180_has_it),
        cmocka_unit_test(csv_errors_name_the_line),
        cmocka_unit_test(jsonl_is_read_line_by_line),
        cmocka_unit_test(a_list_is_read_relative_to_itself),
        cmocka_unit_test(a_latent_cache_is_a_data_set),
        cmocka_unit_test(the_hash_tells_lists_apart),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
