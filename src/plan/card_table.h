/* Graphics cards that plans know by name. */
#ifndef DSVI_CARD_TABLE_H
#define DSVI_CARD_TABLE_H

#include "plan/device_table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes the card that is called `name`, such as rtx4090. Without measured speeds, out->speeds are those
 * of another device (speeds.assumed). Fails with DSV_E_USAGE and the list of known names if there is no such
 * card. */
DsvStatus dsvi_card_find(const char *name, DsviDeviceTable *out);

#ifdef __cplusplus
}
#endif
#endif
