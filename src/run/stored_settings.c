/* Implements stored_settings.h: stores the options of a run in config.yaml. */
#include "run/stored_settings.h"

DsvStatus dsvi_settings_store(const DsvConfig *settings, const char *path)
{
    DsvConfig stored = *settings;
    stored.resume_from_checkpoint[0] = 0;
    return dsv_config_save(&stored, path);
}
