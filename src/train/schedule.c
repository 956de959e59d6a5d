/* Implements schedule.h: the learning rate of each step. */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

/* Returns the first step after the warm-up whose learning rate may be below lr. */
static int64_t fall_start(const DsvConfig *settings)
{
    int64_t warmup = settings->warmup_steps > 0 ? settings->warmup_steps : 1;
    int64_t decay = settings->lr_decay_steps;
    if (strcmp(settings->lr_scheduler, "wsd") != 0)
        return warmup;
    if (decay == 0)
        decay = (settings->max_train_steps + 9) / 10;
    int64_t start = settings->max_train_steps + 1 - decay;
    return start > warmup ? start : warmup;
}

double dsvi_learning_rate(const DsvConfig *settings, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t start = fall_start(settings), length = settings->max_train_steps + 1 - start;
    if (step < settings->warmup_steps)
        return settings->lr * (double)step / (double)settings->warmup_steps;
    if (strcmp(settings->lr_scheduler, "constant") == 0 || step <= start || length <= 0)
        return settings->lr;
    double done = (double)(step - start) / (double)length;
    done = done < 1 ? done : 1;
    double left = strcmp(settings->lr_scheduler, "cosine") == 0 ? 0.5 * (1 + cos(pi * done)) : 1 - done;
    return settings->lr * (settings->lr_min_ratio + (1 - settings->lr_min_ratio) * left);
}
