/* How much memory this machine, or this control group, can still give. */
#ifndef DCPD_MEMAVAIL_H
#define DCPD_MEMAVAIL_H

#include "dcpd/base/base.h"

/* Bytes: MemAvailable, or what the cgroup (v2) has left if that is less. */
int dcpd_memory_available(uint64_t *bytes, struct dcpd_err *);

#endif
