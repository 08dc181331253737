/* Storage of the counter table; see counters.h. */
#include "config.h"

#include "dcpd/admin/counters.h"

_Atomic uint64_t dcpd_counters[DCPD_CNT_N];
