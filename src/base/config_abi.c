/* See config_abi.h. Options are added in the middle of DsvConfig, so that no other layout than this library's
 * can be read. */
#include "base/config_abi.h"

#include "base/status.h"

DsvStatus dsvi_config_check_abi(const DsvConfig *config)
{
    if (config->bytes != sizeof *config)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "the DsvConfig passed has %zu bytes, expected %zu: set it up with dsv_config_defaults, and "
            "compile the program with the headers of this version",
            config->bytes, sizeof *config);
    return DSV_OK;
}
