/* See stored_settings.h. */
#include "train/stored_settings.h"

DsvStatus dsvi_settings_store(const DsvConfig *settings, const char *path)
{
    DsvConfig stored = *settings;
    stored.resume_from_checkpoint[0] = 0;
    return dsv_config_save(&stored, path);
}
