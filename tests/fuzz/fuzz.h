/* What every fuzz harness starts from. A harness is one file with one function, LLVMFuzzerTestOneInput, that
 * feeds one reader of outside bytes. clang links it with libFuzzer; every compiler links it with replay.c,
 * which runs it over its seeds as an ordinary test.
 *
 * Readers see the input as files below FUZZ_ROOT. These files exist in memory only (memory_files.c): the
 * linker sends the readers' calls of open, stat, fopen and so on to that file. A mapped file is an allocation
 * of the file's exact size, so that the address sanitizer sees a read beyond its end. */
#ifndef DSVI_FUZZ_H
#define DSVI_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUZZ_ROOT "/fuzz"

/* The harness: returns 0 always. `data` has `size` bytes, and no zero after them. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Removes all files and closes those that are open. */
void fuzz_files_clear(void);
/* Makes the file FUZZ_ROOT/name. `data` is not copied: it must outlive the input's run. */
void fuzz_file_put(const char *name, const void *data, size_t bytes);
/* Clears, then makes `count` files of one input, cut where "@@@@" ends a line. A file whose part is
 * missing is empty. */
void fuzz_files_put_parts(const char *const *names, int count, const uint8_t *data, size_t size);

/* Notes that the reader took the input of this run. replay.c holds the seeds' names against it. */
void fuzz_accept(void);
/* Whether the reader took the input since the last question. */
bool fuzz_accepted(void);

/* Ends the program when a promise of the reader is broken. */
#define fuzz_expect(condition)                                                                         \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                    \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
