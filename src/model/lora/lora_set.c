/* Implements lora_set.h. */
#include "model/lora/lora_set.h"

#include <math.h>
#include <string.h>

DsvStatus dsvi_lora_set_open(const char *const *paths, const double *scales, size_t count, DsviLoraSet *out)
{
    memset(out, 0, sizeof *out);
    if (count > DSVI_LORAS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%zu LoRAs, expected at most %d", count, DSVI_LORAS_MAX);
    for (size_t i = 0; i < count; i++) {
        out->scale[i] = scales ? scales[i] : 1;
        if (!isfinite(out->scale[i]))
            return DSVI_FAIL(DSV_E_USAGE, "the scale of the LoRA %s is %g, expected a finite number",
                             paths[i], out->scale[i]);
        DSVI_TRY(dsvi_lora_open(paths[i], &out->lora[i]));
        out->count++;
    }
    return DSV_OK;
}

void dsvi_lora_set_close(DsviLoraSet *set)
{
    for (size_t i = 0; i < set->count; i++)
        dsvi_lora_close(&set->lora[i]);
    set->count = 0;
}

static DsvStatus change_of(const DsviLora *lora, const DsviParam *param, DsviLoraChange *change)
{
    return dsvi_lora_change(lora, param->name, param->shape[0], param->count, change);
}

bool dsvi_lora_set_changes(const DsviLoraSet *set, const DsviParam *param)
{
    DsviLoraChange change;
    for (size_t i = 0; i < set->count; i++)
        if (change_of(&set->lora[i], param, &change) == DSV_OK && change.layer)
            return true;
    return false;
}

DsvStatus dsvi_lora_set_add(const DsviLoraSet *set, const DsviParam *param, float *values)
{
    for (size_t i = 0; i < set->count; i++) {
        DsviLoraChange change;
        DSVI_TRY(change_of(&set->lora[i], param, &change));
        if (change.layer)
            DSVI_TRY(dsvi_lora_add(&set->lora[i], &change, set->scale[i], values));
    }
    return DSV_OK;
}
