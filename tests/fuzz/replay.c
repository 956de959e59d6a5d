/* Runs a harness without libFuzzer, once for each file, and each file of a folder, named on the command
 * line. The reader must accept a seed whose name begins with "good", and refuse a seed whose name begins
 * with "bad". */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

#include "dsv/status.h"

static int runs, failures;

static void run_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct stat found;
    FILE *file = fopen(path, "rb");
    if (!file || stat(path, &found) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        failures++;
        return;
    }
    size_t bytes = (size_t)found.st_size;
    uint8_t *data = malloc(bytes ? bytes : 1); /* exact size, so that a read past the end is detected */
    fuzz_expect(data && fread(data, 1, bytes, file) == bytes);
    fclose(file);
    (void)fuzz_accepted();
    (void)LLVMFuzzerTestOneInput(data, bytes);
    bool accepted = fuzz_accepted();
    bool wrong = strncmp(name, accepted ? "bad" : "good", accepted ? 3 : 4) == 0;
    if (wrong)
        fprintf(stderr, "%s: the reader %s it; its last sentence: %s\n", path, accepted ? "took" : "refused",
                dsv_error_message());
    failures += wrong;
    runs++;
    free(data);
}

static int is_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        struct dirent **entries;
        int found = scandir(arguments[i], &entries, is_file, alphasort);
        if (found < 0)
            run_file(arguments[i]);
        for (int j = 0; j < found; j++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", arguments[i], entries[j]->d_name);
            run_file(path);
            free(entries[j]);
        }
        if (found >= 0)
            free(entries);
    }
    printf("%d inputs, %d not as named\n", runs, failures);
    return failures > 0 || runs == 0;
}
