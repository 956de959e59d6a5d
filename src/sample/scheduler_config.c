/* Implements scheduler_config.h: two tables of keys, one for each class, with the values that dsv implements.
 *
 * Keys that only other settings use are not in the tables: beta_start and the like (without flow sigmas),
 * steps_offset, timestep_spacing, sigma_min and sigma_max (flow sigmas are evenly spaced from 1),
 * sample_max_value (thresholding), base_shift, max_shift and time_shift_type (dynamic shifting). */
#include "sample/scheduler_config.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/model_config.h"

static const double SHIFT_MIN = 0.01, SHIFT_MAX = 100; /* as the option flow_shift */

/* A key with the only value that dsv implements, as JSON text. If the key is absent, its value is `absent`.
 */
typedef struct Needed {
    const char *key, *value, *absent;
} Needed;

typedef struct Scheduler {
    const char *class_name, *sampler, *shift_key;
    Needed needed[20]; /* ends with a key NULL */
} Scheduler;

static const Scheduler SCHEDULERS[] = {
    {"UniPCMultistepScheduler",
     "unipc",
     "flow_shift",
     {{"num_train_timesteps", "1000", "1000"},
      {"prediction_type", "\"flow_prediction\"", "\"epsilon\""},
      {"use_flow_sigmas", "true", "false"},
      {"solver_order", "2", "2"},
      {"solver_type", "\"bh2\"", "\"bh2\""},
      {"predict_x0", "true", "true"},
      {"lower_order_final", "true", "true"},
      {"final_sigmas_type", "\"zero\"", "\"zero\""},
      {"disable_corrector", "[]", "[]"},
      {"solver_p", "null", "null"},
      {"thresholding", "false", "false"},
      {"shift_terminal", "null", "null"}}},
    {"FlowMatchEulerDiscreteScheduler",
     "euler",
     "shift",
     {{"num_train_timesteps", "1000", "1000"},
      {"invert_sigmas", "false", "false"},
      {"stochastic_sampling", "false", "false"},
      {"shift_terminal", "null", "null"}}},
};

/* Finds the class that the file names. */
static DsvStatus find_class(const cJSON *object, const char *path, const Scheduler **out)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
    for (size_t i = 0; name && i < sizeof SCHEDULERS / sizeof *SCHEDULERS; i++)
        if (strcmp(name, SCHEDULERS[i].class_name) == 0) {
            *out = &SCHEDULERS[i];
            return DSV_OK;
        }
    return DSVI_FAIL(
        DSV_E_UNSUPPORTED,
        "%s: _class_name is %s, expected UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler", path,
        name ? name : "missing");
}

static DsvStatus check_needed(const cJSON *object, const char *path, const Needed *needed)
{
    DsvStatus status = DSV_OK;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, needed->key);
    cJSON *wanted = cJSON_Parse(needed->value);
    char *found = item ? cJSON_PrintUnformatted(item) : NULL;
    if (!wanted || (item && !found))
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", path);
    else if (item ? !cJSON_Compare(item, wanted, true) : strcmp(needed->absent, needed->value) != 0)
        status = DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is %.64s%s, dsv implements only %s", path, needed->key,
                           item ? found : needed->absent, item ? "" : " because the key is absent",
                           needed->value);
    cJSON_free(found);
    cJSON_Delete(wanted);
    return status;
}

/* Fails if a key that switches on another schedule, all of which begin with use_, is true: dsv implements
 * none but use_flow_sigmas. */
static DsvStatus check_switches(const cJSON *object, const char *path)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        if (strncmp(item->string, "use_", 4) == 0 && strcmp(item->string, "use_flow_sigmas") != 0 &&
            !cJSON_IsFalse(item) && !cJSON_IsNull(item))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %.64s is not false, dsv implements only false", path,
                             item->string);
    }
    return DSV_OK;
}

static DsvStatus scheduler_from_object(const cJSON *object, const char *path, DsviSchedulerConfig *out)
{
    const Scheduler *scheduler = NULL;
    DSVI_TRY(find_class(object, path, &scheduler));
    for (const Needed *needed = scheduler->needed; needed->key; needed++)
        DSVI_TRY(check_needed(object, path, needed));
    DSVI_TRY(check_switches(object, path));
    const cJSON *shift = cJSON_GetObjectItemCaseSensitive(object, scheduler->shift_key);
    out->sampler = scheduler->sampler;
    out->flow_shift = shift ? cJSON_GetNumberValue(shift) : 1; /* NaN if the item is no number */
    if (!(out->flow_shift >= SHIFT_MIN && out->flow_shift <= SHIFT_MAX))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a number from %g to %g", path, scheduler->shift_key,
                         SHIFT_MIN, SHIFT_MAX);
    return DSV_OK;
}

DsvStatus dsvi_scheduler_config_read(const char *path, DsviSchedulerConfig *out)
{
    cJSON *object;
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = scheduler_from_object(object, path, out);
    cJSON_Delete(object);
    return status;
}
