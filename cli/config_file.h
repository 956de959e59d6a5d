/* Where the file of settings is that a command line names. */
#ifndef CLI_CONFIG_FILE_H
#define CLI_CONFIG_FILE_H

#include <dsv/config.h>

/* The path of the file `named`, "configs/demo.yaml": itself where it exists; otherwise the file of that name
 * that was installed with the program, where there is one; otherwise `named`. The result is valid until the
 * next call. */
const char *cli_config_find(const char *named);

/* Loads the file that `named` stands for over `config`. */
DsvStatus cli_config_load(const char *named, DsvConfig *config);

#endif
