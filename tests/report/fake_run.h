/* A run folder with known numbers, and functions that search the report of the run. */
#ifndef DSVI_TEST_FAKE_RUN_H
#define DSVI_TEST_FAKE_RUN_H

#include "base/fs.h"
#include "dsv/report.h"
#include "test.h"

/* A new folder, "<temporary>/name". */
const char *fake_folder(const char *name);
/* Removes the folder of fake_folder. */
void fake_remove(const char *folder);

void fake_file(const char *folder, const char *name, const char *text);

/* The numbers of the run at a step, counted from 1. */
enum { FAKE_BLOCKS = 3, FAKE_HEADS = 2, FAKE_MEASURE_EVERY = 10 };
double fake_loss(int64_t step);
double fake_captured(int64_t step, int64_t block, int64_t head);

/* Writes metrics.jsonl and blocks.jsonl of this many steps. */
void fake_metrics(const char *folder, int64_t steps);
/* Writes the other files of a run of 100 steps, except clips. */
void fake_rest(const char *folder);

/* Writes the report into the folder and returns its text. */
char *fake_report(const char *folder, DsvReportSummary *summary);

/* Returns the text between the first `before` and the next `behind`; fails if there is none. */
const char *text_between(const char *text, const char *before, const char *behind);
/* Number of occurrences. */
int count_of(const char *text, const char *words);
void assert_holds(const char *text, const char *words);
void assert_lacks(const char *text, const char *words);

#endif
