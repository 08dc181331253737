/*
 * Which rank does what: the rule of --tp, --attn-dp-size, --attn-cp-size and
 * --dcp-size, and the slices of each weight. Pure functions, any thread.
 *
 * Rank order inside a shard: tp inner, cp outer. Rank r of a shard has the
 * attention heads of slice r % attn_tp, which its CP siblings share; the FFN,
 * the experts and lm_head are split over all ranks whatever attention does.
 */
#include "config.h"

#include <errno.h>

#include "dcpd/parallel/topology.h"

static int
check_sizes(const struct dcpd_layout *l, struct dcpd_err *err)
{
	if (l->tp < 1 || l->tp > DCPK_MAX_RANKS)
		return dcpd_fail(err, -EINVAL, "--tp %u: must be from 1 to %u",
		    l->tp, DCPK_MAX_RANKS);
	if (l->dp < 1)
		return dcpd_fail(err, -EINVAL, "--attn-dp-size %u: must be at "
		    "least 1", l->dp);
	if (l->cp < 1)
		return dcpd_fail(err, -EINVAL, "--attn-cp-size %u: must be at "
		    "least 1", l->cp);
	if (l->dcp < 1 || l->dcp > DCPK_PAGE || (l->dcp & (l->dcp - 1)) != 0)
		return dcpd_fail(err, -EINVAL, "--dcp-size %u: must be 1, 2, "
		    "4, 8, 16, 32 or 64 (it divides the page of %u tokens)",
		    l->dcp, DCPK_PAGE);
	return 0;
}

int
dcpd_layout_check(const struct dcpd_layout *l, struct dcpd_err *err)
{
	uint32_t span;
	int rc = check_sizes(l, err);

	if (rc != 0)
		return rc;
	if (l->tp % l->dp != 0)
		return dcpd_fail(err, -EINVAL, "--attn-dp-size %u: must divide "
		    "--tp %u", l->dp, l->tp);
	span = l->tp / l->dp;
	if (span % l->cp != 0)
		return dcpd_fail(err, -EINVAL, "--attn-cp-size %u: must divide "
		    "the %u ranks of an attention shard (--tp %u / "
		    "--attn-dp-size %u)", l->cp, span, l->tp, l->dp);
	if (l->dcp > span || span % l->dcp != 0)
		return dcpd_fail(err, -EINVAL, "--dcp-size %u: must divide the "
		    "%u ranks of an attention shard (--tp %u / --attn-dp-size "
		    "%u)", l->dcp, span, l->tp, l->dp);
	return 0;
}

int
dcpd_topology(const struct dcpd_layout *l, const struct dcpk_model *m,
    struct dcpk_topo *t, struct dcpd_err *err)
{
	uint32_t span;
	int rc = dcpd_layout_check(l, err);

	if (rc != 0)
		return rc;
	span = l->tp / l->dp;
	if (m->heads % span != 0)
		return dcpd_fail(err, -EINVAL, "--tp %u: the model's %u "
		    "attention heads cannot be split over the %u ranks of an "
		    "attention shard (--tp / --attn-dp-size); use a divisor "
		    "of %u", l->tp, m->heads, span, m->heads);
	if (l->dp != 1)
		return dcpd_fail(err, -ENOTSUP, "--attn-dp-size %u: attention "
		    "data parallelism is not built yet; use 1", l->dp);
	*t = (struct dcpk_topo){
		.world = l->tp, .attn_tp = span / l->cp, .cp = l->cp,
		.dcp = l->dcp, .strategy = l->strategy,
	};
	return 0;
}

/* --- slices -------------------------------------------------------------- */

/* Part i of n cut into `parts`, the first n % parts of them one longer. */
static void
part(uint32_t n, uint32_t parts, uint32_t i, uint32_t *from, uint32_t *to)
{
	uint32_t q = n / parts, rem = n % parts;

	*from = i * q + (i < rem ? i : rem);
	*to = *from + q + (i < rem);
}

/* Ranks that share attention slice i: i, i + attn_tp, i + 2 attn_tp, ... */
static uint64_t
sharers(const struct dcpk_topo *t, uint32_t i)
{
	uint64_t mask = 0;
	uint32_t r;

	for (r = i; r < t->world; r += t->attn_tp)
		mask |= UINT64_C(1) << r;
	return mask;
}

enum split {
	WHOLE,			/* on every rank */
	HEADS_N, HEADS_K,	/* by head, rows or columns */
	RANKS_N, RANKS_K,	/* over all ranks, rows or columns */
};

static enum split
split_of(enum dcpk_tensor t)
{
	switch (t) {
	case DCPK_T_Q_B: case DCPK_T_KV_B:
		return HEADS_N;
	case DCPK_T_O:
		return HEADS_K;
	case DCPK_T_LM_HEAD:
	case DCPK_T_GATE: case DCPK_T_UP: case DCPK_T_E_GATE:
	case DCPK_T_E_UP: case DCPK_T_S_GATE: case DCPK_T_S_UP:
		return RANKS_N;
	case DCPK_T_DOWN: case DCPK_T_E_DOWN: case DCPK_T_S_DOWN:
		return RANKS_K;
	default:
		return WHOLE;
	}
}

uint32_t
dcpd_slices(const struct dcpk_model *m, const struct dcpk_topo *topo,
    enum dcpk_tensor t, uint32_t n, uint32_t k, struct dcpd_slice *out)
{
	enum split s = split_of(t);
	bool heads = s == HEADS_N || s == HEADS_K;
	uint32_t parts = s == WHOLE ? 1 : heads ? topo->attn_tp : topo->world;
	uint32_t i;

	DCPD_ASSERT(!heads || m->heads % topo->attn_tp == 0);
	for (i = 0; i < parts; i++) {
		struct dcpd_slice *o = &out[i];

		*o = (struct dcpd_slice){ .n1 = n, .k1 = k };
		if (s == WHOLE)
			o->ranks = UINT64_MAX >> (64 - topo->world);
		else
			o->ranks = heads ? sharers(topo, i) : UINT64_C(1) << i;
		if (s == HEADS_N || s == RANKS_N)
			part(n, parts, i, &o->n0, &o->n1);
		if (s == HEADS_K || s == RANKS_K)
			part(k, parts, i, &o->k0, &o->k1);
	}
	return parts;
}
