/* Implements schedule.h: the learning rate of each step. */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

double dsvi_learning_rate(const DsvConfig *settings, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t warmup = settings->warmup_steps;
    if (step < warmup)
        return settings->lr * (double)step / (double)warmup;
    if (strcmp(settings->lr_scheduler, "cosine") != 0)
        return settings->lr;
    int64_t start = warmup > 0 ? warmup : 1;
    int64_t length = settings->max_train_steps + 1 - start;
    double done = length > 0 ? (double)(step - start) / (double)length : 0;
    return settings->lr * 0.5 * (1 + cos(pi * (done < 1 ? done : 1)));
}
