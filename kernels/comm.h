/*
 * Device memory that NCCL takes for itself, told to the planner and to the
 * module. A pure function.
 */
#ifndef DCPK_COMM_H
#define DCPK_COMM_H

#include "kernels/mirror.h"

/*
 * Of a rank. NCCL 2.28.3, two H200s, no NVLink multicast: 386 MiB when it is
 * opened, 474 with the first sum, whatever its size; nothing later. Among more
 * ranks one has two neighbours in a ring instead of one: twice the latter is
 * assumed, and was not measured. Where ranks are kept from each other's memory
 * every peer takes 446 more with the first copy, or, where NCCL cannot reach it
 * either, all of it together is 466.
 */
static inline uint64_t
dcpk_comm_bytes(const struct dcpk_setup *s)
{
	if (s->comm != DCPK_COMM_NCCL || s->topo.world < 2)
		return 0;
	return (uint64_t)(400 + 496 * (s->topo.world > 2 ? 2 : 1) +
	    (dcpk_mirrored(s) ? 464 * (s->topo.world - 1) : 0)) << 20;
}

#endif
