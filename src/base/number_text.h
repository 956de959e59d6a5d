/* A double as text that reads back as the same double. */
#ifndef DSVI_NUMBER_TEXT_H
#define DSVI_NUMBER_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_NUMBER_ROOM 32

/* The fewest digits that tell it from its neighbours, with a decimal point whatever the locale. A value that is
 * not finite has no such text and gives "null", as JSON wants it. */
void dsvi_number_text(double value, char text[DSVI_NUMBER_ROOM]);

#ifdef __cplusplus
}
#endif
#endif
