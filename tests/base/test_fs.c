/* Files and folders, and the messages of their failures. */
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <xxhash.h>

#include "scratch.h"

static int reluctance; /* how write() fails or shortens its writes */

/* Replaces the C library's write(): every other call fails as if interrupted by a signal, and others write a
 * few bytes; or every call fails. */
ssize_t write(int file, const void *data, size_t bytes)
{
    static int call;
    if (reluctance == 2)
        return 0;
    if (reluctance == 1 && call++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_write, file, data, reluctance && bytes > 3 ? 3 : bytes);
}

static void paths_are_joined(void **state)
{
    char path[DSVI_PATH_MAX], part[DSVI_PATH_MAX];
    (void)state;
    assert_ok(dsvi_path_join(path, "a", "b"));
    assert_string_equal(path, "a/b");
    assert_ok(dsvi_path_join(path, "/", "b"));
    assert_string_equal(path, "/b");
    assert_ok(dsvi_path_join(path, "a/", "b/c"));
    assert_string_equal(path, "a/b/c");
    memset(part, 'x', sizeof part);
    part[DSVI_PATH_MAX - 3] = 0;
    assert_ok(dsvi_path_join(path, part, "b")); /* the longest path allowed */
    assert_int_equal(strlen(path), DSVI_PATH_MAX - 1);
    part[DSVI_PATH_MAX - 3] = 'x';
    part[DSVI_PATH_MAX - 2] = 0;
    assert_fails(DSV_E_USAGE, "path longer than 4095 bytes", dsvi_path_join(path, part, "b"));
}

static void folders_are_made_with_their_parents(void **state)
{
    const char *path = scratch_path("one/two/three"), *file = scratch_path("file");
    (void)state;
    assert_false(dsvi_path_exists(path));
    assert_ok(dsvi_folder_make(path));
    assert_true(dsvi_path_is_folder(path));
    assert_ok(dsvi_folder_make(path));
    assert_ok(dsvi_folder_make(scratch_path("one/two/three/four/")));
    assert_ok(dsvi_file_write(file, "x", 1));
    assert_false(dsvi_path_is_folder(file));
    assert_fails(DSV_E_IO, "a file of this name exists", dsvi_folder_make(file));
    assert_fails(DSV_E_IO, "file/below: cannot make the folder: Not a directory",
                 dsvi_folder_make(scratch_path("file/below")));
    assert_fails(DSV_E_USAGE, "has no name", dsvi_folder_make(""));
    if (geteuid() != 0) /* root is not restricted by permissions */
        assert_fails(DSV_E_IO, "/proc/dsv: cannot make the folder", dsvi_folder_make("/proc/dsv"));
}

typedef struct Names {
    char text[256];
    int until; /* the callback fails at this entry */
} Names;

static DsvStatus note_name(void *context, const char *name)
{
    Names *names = context;
    if (names->until-- == 0)
        return DSVI_FAIL(DSV_E_USAGE, "not %s", name);
    strcat(strcat(names->text, name), " ");
    return DSV_OK;
}

static void folders_are_listed_in_order(void **state)
{
    static const char *const name[] = {"list/b", "list/.a", "list/B", "list/10", "list/9", "list/é"};
    Names names = {.until = -1};
    (void)state;
    assert_ok(dsvi_folder_make(scratch_path("list/folder")));
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        assert_ok(dsvi_file_write(scratch_path(name[i]), "", 0));
    assert_ok(dsvi_folder_list(scratch_path("list"), note_name, &names));
    assert_string_equal(names.text, ".a 10 9 B b folder é ");
    names = (Names){.until = 2};
    assert_fails(DSV_E_USAGE, "not 9", dsvi_folder_list(scratch_path("list"), note_name, &names));
    assert_string_equal(names.text, ".a 10 ");
    assert_fails(DSV_E_NOT_FOUND, "nowhere: cannot list the folder: No such file",
                 dsvi_folder_list(scratch_path("nowhere"), note_name, &names));
}

static void folders_are_removed_but_not_what_links_lead_to(void **state)
{
    (void)state;
    assert_ok(dsvi_folder_make(scratch_path("keep")));
    assert_ok(dsvi_file_write(scratch_path("keep/file"), "x", 1));
    assert_ok(dsvi_folder_make(scratch_path("gone/deep/deeper")));
    assert_ok(dsvi_file_write(scratch_path("gone/deep/file"), "x", 1));
    assert_int_equal(symlink(scratch_path("keep"), scratch_path("gone/deep/link")), 0);
    assert_int_equal(symlink(scratch_path("nowhere"), scratch_path("gone/broken")), 0);
    assert_int_equal(symlink(scratch_path("keep"), scratch_path("link")), 0);
    assert_ok(dsvi_folder_remove(scratch_path("gone")));
    assert_false(dsvi_path_exists(scratch_path("gone")));
    assert_ok(dsvi_folder_remove(scratch_path("gone")));
    assert_ok(dsvi_folder_remove(scratch_path("link")));
    assert_false(dsvi_path_exists(scratch_path("link")));
    assert_true(dsvi_path_exists(scratch_path("keep/file")));
}

static void files_come_back_as_written(void **state)
{
    static const char data[] = "first\0second\xff";
    const char *path = scratch_path("data");
    char *text;
    size_t bytes;
    uint64_t size;
    (void)state;
    for (size_t length = 0; length <= sizeof data; length += sizeof data) {
        assert_ok(dsvi_file_write(path, data, length)); /* the second is longer than the first */
        assert_ok(dsvi_file_read(path, length, &text, &bytes));
        assert_int_equal(bytes, length);
        assert_memory_equal(text, data, length);
        assert_int_equal(text[length], 0);
        free(text);
        assert_ok(dsvi_file_size(path, &size));
        assert_int_equal(size, length);
    }
    assert_ok(dsvi_file_write(path, "short", 5)); /* nothing of the longer file remains */
    assert_ok(dsvi_file_read(path, 100, &text, &bytes));
    assert_string_equal(text, "short");
    free(text);
    assert_fails(DSV_E_FORMAT, "data: 5 bytes, expected at most 4", dsvi_file_read(path, 4, &text, &bytes));
    assert_fails(DSV_E_NOT_FOUND, "No such file", dsvi_file_read(scratch_path("nowhere"), 9, &text, &bytes));
    assert_fails(DSV_E_IO, "not a regular file", dsvi_file_read(scratch_folder, 9, &text, &bytes));
    assert_fails(DSV_E_NOT_FOUND, "No such file", dsvi_file_size(scratch_path("nowhere"), &size));
}

static void parts_follow_one_another(void **state)
{
    const DsviFilePart parts[] = {{"one", 3}, {NULL, 0}, {" two", 4}};
    char *text;
    size_t bytes;
    (void)state;
    assert_ok(dsvi_file_write_parts(scratch_path("parts"), parts, 3));
    assert_ok(dsvi_file_read(scratch_path("parts"), 100, &text, &bytes));
    assert_string_equal(text, "one two");
    free(text);
}

static void writing_goes_on_until_all_is_written(void **state)
{
    char *text;
    size_t bytes;
    (void)state;
    reluctance = 1;
    DsvStatus status = dsvi_file_write(scratch_path("slow"), "many bytes at last", 18);
    reluctance = 2;
    assert_fails(DSV_E_IO, "cannot write 4 bytes more: none were taken",
                 dsvi_file_write(scratch_path("no"), "data", 4));
    reluctance = 0;
    assert_ok(status);
    assert_ok(dsvi_file_read(scratch_path("slow"), 100, &text, &bytes));
    assert_string_equal(text, "many bytes at last");
    free(text);
}

static void failed_writes_say_why(void **state)
{
    (void)state;
    assert_fails(DSV_E_NOT_FOUND, "nowhere/file: cannot write it: No such file",
                 dsvi_file_write(scratch_path("nowhere/file"), "x", 1));
    assert_fails(DSV_E_IO, "/dev/full: cannot write 7 bytes more: No space left on device",
                 dsvi_file_write("/dev/full", "seven..", 7));
    assert_fails(DSV_E_IO, "Is a directory", dsvi_file_write(scratch_folder, "x", 1));
}

static void replacing_is_all_or_nothing(void **state)
{
    const char *path = scratch_path("replaced");
    char *text;
    size_t bytes;
    (void)state;
    assert_ok(dsvi_file_replace(path, "old", 3));
    assert_ok(dsvi_file_replace(path, "new", 3));
    assert_ok(dsvi_file_read(path, 100, &text, &bytes));
    assert_string_equal(text, "new");
    free(text);
    assert_false(dsvi_path_exists(scratch_path("replaced.tmp")));

    /* The file cannot be written: the old file stays, and no temporary file remains. */
    reluctance = 2;
    DsvStatus status = dsvi_file_replace(path, "newer", 5);
    reluctance = 0;
    assert_fails(DSV_E_IO, "replaced.tmp: cannot write 5 bytes more: none were taken", status);
    assert_false(dsvi_path_exists(scratch_path("replaced.tmp")));
    assert_ok(dsvi_file_read(path, 100, &text, &bytes));
    assert_string_equal(text, "new");
    free(text);

    /* A folder has the file's name, so the rename fails. */
    assert_ok(dsvi_folder_make(scratch_path("taken/inside")));
    assert_fails(DSV_E_IO, "cannot rename it to", dsvi_file_replace(scratch_path("taken"), "x", 1));
    assert_false(dsvi_path_exists(scratch_path("taken.tmp")));
}

static void assert_file(const char *name, const char *wanted)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_file_read(scratch_path(name), 100, &text, &bytes));
    assert_string_equal(text, wanted);
    free(text);
}

/* If the path or its temporary name is a link, the file to which the link leads stays unchanged. */
static void links_are_not_written_through(void **state)
{
    int lock;
    (void)state;
    assert_ok(dsvi_file_write(scratch_path("victim"), "mine", 4));
    assert_int_equal(symlink(scratch_path("victim"), scratch_path("linked")), 0);
    assert_int_equal(symlink(scratch_path("victim"), scratch_path("linked.tmp")), 0);
    assert_fails(DSV_E_IO, "linked: cannot write it: it is a link",
                 dsvi_file_write(scratch_path("linked"), "x", 1));
    assert_fails(DSV_E_IO, "linked: cannot open it: it is a link",
                 dsvi_file_lock(scratch_path("linked"), &lock));
    assert_ok(dsvi_file_replace(scratch_path("linked"), "theirs", 6));
    assert_file("linked", "theirs");
    assert_file("victim", "mine");
    assert_int_equal(symlink(scratch_path("nowhere"), scratch_path("linked.tmp")), 0);
    assert_ok(dsvi_file_check_writable(scratch_path("linked")));
    assert_false(dsvi_path_exists(scratch_path("nowhere")));
}

static void the_rest_of_an_open_file_is_copied(void **state)
{
    (void)state;
    assert_ok(dsvi_file_write(scratch_path("source"), "first second", 12));
    int source = open(scratch_path("source"), O_RDONLY);
    assert_true(source >= 0);
    assert_int_equal(unlink(scratch_path("source")), 0);
    assert_ok(dsvi_file_copy_from(source, 6, scratch_path("rest")));
    assert_file("rest", "second");
    assert_ok(dsvi_file_copy_from(source, 12, scratch_path("rest")));
    assert_file("rest", "");
    assert_int_equal(close(source), 0);
}

static void a_path_is_told_from_what_it_was(void **state)
{
    char again[DSVI_PATH_MAX];
    (void)state;
    assert_ok(dsvi_file_write(scratch_path("watched"), "x", 1));
    int file = open(scratch_path("watched"), O_RDONLY);
    snprintf(again, sizeof again, "%s/./watched", scratch_folder);
    assert_true(dsvi_path_is_open_as(scratch_path("watched"), file));
    assert_true(dsvi_path_same(scratch_path("watched"), again));
    assert_ok(dsvi_file_replace(scratch_path("watched"), "x", 1));
    assert_false(dsvi_path_is_open_as(scratch_path("watched"), file));
    assert_int_equal(unlink(scratch_path("watched")), 0);
    assert_false(dsvi_path_is_open_as(scratch_path("watched"), file));
    assert_false(dsvi_path_same(scratch_path("watched"), again));
    assert_int_equal(close(file), 0);
}

/* Changes of the lock's file by a process while another is between its open() and its flock(). */
static const char *stolen;

int flock(int file, int how)
{
    if (stolen)
        unlink(stolen);
    stolen = NULL;
    return (int)syscall(SYS_flock, file, how);
}

/* A lock on a file that was removed would exclude nobody. */
static void a_lock_is_on_the_file_that_has_the_name(void **state)
{
    char path[DSVI_PATH_MAX];
    int lock, second;
    (void)state;
    snprintf(path, sizeof path, "%s", scratch_path("lock"));
    stolen = path;
    assert_ok(dsvi_file_lock(path, &lock));
    assert_true(dsvi_path_is_open_as(path, lock));
    assert_fails(DSV_E_USAGE, "lock: locked by another process", dsvi_file_lock(path, &second));
    assert_int_equal(second, -1);
    assert_int_equal(close(lock), 0);
    assert_ok(dsvi_file_lock(path, &lock));
    assert_int_equal(close(lock), 0);
}

static void paths_are_renamed(void **state)
{
    (void)state;
    assert_ok(dsvi_file_write(scratch_path("from"), "x", 1));
    assert_ok(dsvi_path_rename(scratch_path("from"), scratch_path("to")));
    assert_false(dsvi_path_exists(scratch_path("from")));
    assert_true(dsvi_path_exists(scratch_path("to")));
    assert_fails(DSV_E_IO, "cannot rename it to", dsvi_path_rename(scratch_path("from"), scratch_path("to")));
    assert_fails(DSV_E_NOT_FOUND, "cannot open the folder", dsvi_folder_sync(scratch_path("from")));
}

/* The checksum of a file is the checksum of the same bytes in memory, whatever the size of the pieces that
 * are read. The value for an empty file is published with XXH3. */
static void checksums_are_xxh3(void **state)
{
    enum { MOST = 3 << 16 };
    static unsigned char data[MOST];
    static const size_t sizes[] = {0, 1, 240, 241, 65535, 65536, 65537, 131072, MOST};
    const char *path = scratch_path("summed");
    uint64_t checksum, other;
    (void)state;
    for (size_t i = 0; i < MOST; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_ok(dsvi_file_write(path, data, sizes[i]));
        assert_ok(dsvi_file_checksum(path, &checksum));
        assert_true(checksum == XXH3_64bits(data, sizes[i]));
        if (sizes[i] == 0)
            assert_true(checksum == UINT64_C(0x2d06800538d394c2));
    }
    data[MOST - 1] ^= 1;
    assert_ok(dsvi_file_write(path, data, MOST));
    assert_ok(dsvi_file_checksum(path, &other));
    assert_true(other != checksum);
    assert_fails(DSV_E_NOT_FOUND, "No such file", dsvi_file_checksum(scratch_path("nowhere"), &checksum));
    assert_fails(DSV_E_IO, "Is a directory", dsvi_file_checksum(scratch_folder, &checksum));
}

/* /dev/shm is another file system than the folder of temporary files on most machines. */
static void files_move_between_file_systems(void **state)
{
    char from[64], *text, to[DSVI_PATH_MAX];
    size_t bytes;
    struct stat here, there;
    (void)state;
    if (stat("/dev/shm", &there) != 0 || stat(scratch_folder, &here) != 0 || here.st_dev == there.st_dev)
        skip();
    snprintf(from, sizeof from, "/dev/shm/dsv-test-%ld", (long)getpid());
    snprintf(to, sizeof to, "%s", scratch_path("moved"));
    assert_ok(dsvi_file_write(from, "abc", 3));
    assert_ok(dsvi_path_move(from, to));
    assert_false(dsvi_path_exists(from));
    assert_ok(dsvi_file_read(to, 16, &text, &bytes));
    assert_string_equal(text, "abc");
    free(text);
    assert_ok(dsvi_path_move(to, scratch_path("again"))); /* in one file system */
    assert_false(dsvi_path_exists(to));
    assert_ok(dsvi_folder_make(from));
    assert_fails(DSV_E_IO, "cannot move it to", dsvi_path_move(from, to));
    assert_true(dsvi_path_is_folder(from));
    assert_ok(dsvi_folder_remove(from));
    assert_fails(DSV_E_NOT_FOUND, "cannot open it", dsvi_path_move(from, to));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_joined),
        cmocka_unit_test(folders_are_made_with_their_parents),
        cmocka_unit_test(folders_are_listed_in_order),
        cmocka_unit_test(folders_are_removed_but_not_what_links_lead_to),
        cmocka_unit_test(files_come_back_as_written),
        cmocka_unit_test(parts_follow_one_another),
        cmocka_unit_test(writing_goes_on_until_all_is_written),
        cmocka_unit_test(failed_writes_say_why),
        cmocka_unit_test(replacing_is_all_or_nothing),
        cmocka_unit_test(links_are_not_written_through),
        cmocka_unit_test(the_rest_of_an_open_file_is_copied),
        cmocka_unit_test(a_path_is_told_from_what_it_was),
        cmocka_unit_test(a_lock_is_on_the_file_that_has_the_name),
        cmocka_unit_test(paths_are_renamed),
        cmocka_unit_test(files_move_between_file_systems),
        cmocka_unit_test(checksums_are_xxh3),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
