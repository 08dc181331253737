/*
 * The floor of a pass: what the layout must read and multiply at least, and
 * the seconds that this takes at the rates measured at start. A pass that
 * reaches it does nothing but read, or nothing but multiply. Pure.
 */
#ifndef DCPD_MODEL_FLOOR_H
#define DCPD_MODEL_FLOOR_H

#include "dcpd/model/model.h"

/* The mean of many passes, too: requests may be a fraction. */
struct dcpd_pass {
	double requests;	/* one logit row each */
	double rows, prefix;	/* new tokens of each, cached before them */
};

struct dcpd_floor_of {
	const struct dcpd_model_config *cfg;
	const struct dcpk_topo *topo;
	bool cpu;			/* or CUDA: what is kept, see wbytes.c */
	uint32_t flags;			/* as in struct dcpk_setup */
	enum dcpk_kv kv, idx;
};

struct dcpd_floor {
	/* Bytes read, of all ranks together, and of the rank with most. */
	double weights, rows, keys, rank;
	/* Flops of all ranks; CUDA's in fp8 count half: twice the rate. */
	double products, scores, attend;
	double read_bytes_s, flops_s;	/* struct dcpk_speed's; 0: not known */
	double seconds;			/* the longer of the two; 0: not known */
	bool by_flops;			/* which of the two that is */
};

void dcpd_floor(const struct dcpd_floor_of *, const struct dcpk_speed *,
    const struct dcpd_pass *, struct dcpd_floor *);

#endif
