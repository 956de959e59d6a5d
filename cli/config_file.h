/* Finds the configuration file that a command line names. */
#ifndef CLI_CONFIG_FILE_H
#define CLI_CONFIG_FILE_H

#include <dsv/config.h>

/* Returns the path of the configuration file `named`, for example "configs/demo.yaml": `named` itself if it
 * exists, otherwise the file of this name that was installed with the program if there is one, otherwise
 * `named`. The result is valid until the next call. */
const char *cli_config_find(const char *named);

/* Loads the file cli_config_find(named); its options replace those in `config`. */
DsvStatus cli_config_load(const char *named, DsvConfig *config);

#endif
