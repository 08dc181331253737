/* How much memory this machine, or this control group, can still give. */
#ifndef DCPD_MEMAVAIL_H
#define DCPD_MEMAVAIL_H

#include "dcpd/base/base.h"

/* Bytes: MemAvailable, or what the cgroup (v2) has left if that is less. */
int dcpd_memory_available(uint64_t *bytes, struct dcpd_err *);

#define DCPD_CGROUP_PATH 700	/* bytes of a group's folder, at most */
/*
 * The least that the group ("/a/b") or one above it may still take, by the
 * files below root. -ENOENT: none has a limit.
 */
int dcpd_cgroup_left(const char *root, const char *group, uint64_t *bytes);

#endif
