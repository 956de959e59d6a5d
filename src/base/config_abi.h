/* Checks that a caller of the library was compiled with the library's version of DsvConfig. */
#ifndef DSVI_CONFIG_ABI_H
#define DSVI_CONFIG_ABI_H

#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every public function that takes a DsvConfig calls this first. DSV_E_USAGE if config->bytes is not the size
 * of this library's DsvConfig: the caller was compiled with another version of dsv, or never called
 * dsv_config_defaults. Reads no field but config->bytes. */
DsvStatus dsvi_config_check_abi(const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
