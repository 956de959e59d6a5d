/* A run folder made up for the purpose, with numbers that are known, and looking into the page about it. */
#ifndef DSVI_TEST_FAKE_RUN_H
#define DSVI_TEST_FAKE_RUN_H

#include "base/fs.h"
#include "dsv/report.h"
#include "test.h"

/* A new folder, "<temporary>/name". */
const char *fake_folder(const char *name);
/* Removes what fake_folder has made. */
void fake_remove(const char *folder);

void fake_file(const char *folder, const char *name, const char *text);

/* The numbers of the run, at a step from 1. */
enum { FAKE_BLOCKS = 3, FAKE_HEADS = 2, FAKE_MEASURE_EVERY = 10 };
double fake_loss(int64_t step);
double fake_captured(int64_t step, int64_t block, int64_t head);

/* metrics.jsonl and blocks.jsonl of so many steps. */
void fake_metrics(const char *folder, int64_t steps);
/* The other files of a run of 100 steps, its clips excepted. */
void fake_rest(const char *folder);

/* Writes the report into the folder and returns its text. */
char *fake_report(const char *folder, DsvReportSummary *summary);

/* What stands between the first `before` in `text` and the next `behind`; fails where there is none. */
const char *text_between(const char *text, const char *before, const char *behind);
/* How often. */
int count_of(const char *text, const char *words);
void assert_holds(const char *text, const char *words);
void assert_lacks(const char *text, const char *words);

#endif
