/* Declarations for all fuzz harnesses. A harness is one file with one function, LLVMFuzzerTestOneInput,
 * which passes the input to one reader of files or network data. clang links it with libFuzzer; any compiler
 * links it with replay.c, which runs it on its seeds as an ordinary test. Readers see the input as files
 * below FUZZ_ROOT. These files exist only in memory (memory_files.c): the linker redirects the readers'
 * calls of open, stat, fopen and so on to that file. A mapped file is an allocation of exactly the file's
 * size, so that the address sanitizer detects a read past its end. */
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

/* The harness; returns 0 always. `data` has `size` bytes and no terminating zero. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Removes all files and closes all open ones. */
void fuzz_files_clear(void);
/* Makes the file FUZZ_ROOT/name. `data` is not copied and must stay valid until the next input. */
void fuzz_file_put(const char *name, const void *data, size_t bytes);
/* Removes all files, then makes `count` files from one input, split at lines that end with "@@@@". A file
 * without a part is empty. */
void fuzz_files_put_parts(const char *const *names, int count, const uint8_t *data, size_t size);

/* Records that the reader accepted the input of this run. replay.c compares this with the seed's name. */
void fuzz_accept(void);
/* Returns whether the reader accepted the input since the last call. */
bool fuzz_accepted(void);

/* Ends the program if the condition is false. */
#define fuzz_expect(condition)                                                      \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
