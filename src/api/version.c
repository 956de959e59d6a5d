/* dsv_version (include/dsv/dsv.h). */
#include "dsv/dsv.h"

const char *dsv_version(void)
{
    return DSV_VERSION;
}
