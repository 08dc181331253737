/*
 * Which way a prefill pass takes under DCP: predicted seconds of each, from
 * constants measured at start. Pure, step thread. doc/layouts.md derives it.
 *
 * For one layer, received by one rank; T new rows, K keys that they attend to
 * (selected, at most topk each), P cached tokens before them, Hg heads of the
 * group, c = kv_lora, r = rope, e bytes of an activation; everything times
 * (D-1)/D, the part that is not on the rank already:
 *
 *   q    T*Hg*(c+r)*e out, T*Hg*c*e back     2 calls   all heads, keys / D
 *   kv   P*row                               1 call    own heads, all keys
 *   a2a  q's bytes / D + P*row               3 calls   all heads, rows / D
 *
 * The multiply-adds are the same three times, a D-th of all; what differs is
 * the speed they run at: a tile of 64 heads is mostly empty with 8 of them.
 */
#include "config.h"

#include <math.h>

#include "dcpd/parallel/topology.h"

struct load {
	double rows;			/* T */
	double keys;			/* sum over rows */
	double prefix;			/* P, sum over requests */
};

static struct load
load_of(const struct dcpk_model *m, const struct dcpk_plan *p)
{
	const struct dcpk_row *row = DCPK_ROWS(p);
	const struct dcpk_req *req = DCPK_REQS(p);
	struct load l = { .rows = p->n_rows };
	uint32_t i;

	for (i = 0; i < p->n_rows; i++)
		l.keys += row[i].pos < m->topk ? row[i].pos + 1 : m->topk;
	for (i = 0; i < p->n_reqs; i++)
		l.prefix += req[i].prefix;
	return l;
}

void
dcpd_way_predict(const struct dcpk_model *m, const struct dcpk_topo *t,
    enum dcpk_kv kv, const struct dcpk_speed *v, const struct dcpk_plan *p,
    double seconds[3])
{
	struct load l = load_of(m, p);
	double D = t->dcp, away = (D - 1) / D;
	double heads = (double)m->heads / t->world * D;
	double el = kv == DCPK_KV_F32 ? 4 : 2;
	double row = dcpk_row_bytes(kv, m->kv_lora, m->rope);
	double q_bytes = l.rows * heads * (2.0 * m->kv_lora + m->rope) * el;
	double kv_bytes = l.prefix * row;
	double flops = 2 * l.keys * heads * (2.0 * m->kv_lora + m->rope) / D;
	double full = flops / v->attend_flops_s;
	double own = flops / v->attend_own_flops_s;
	double link = away / v->copy_bytes_s;
	double call = t->dcp > 1 ? v->call_s : 0;
	int w;

	seconds[DCPK_WAY_Q] = q_bytes * link + full + 2 * call;
	seconds[DCPK_WAY_KV] = kv_bytes * link + own + call;
	seconds[DCPK_WAY_A2A] = (q_bytes / D + kv_bytes) * link + full +
	    3 * call;
	/* Under CP the rows of a group's ranks differ: rows are gathered. */
	if (t->cp > 1)
		seconds[DCPK_WAY_Q] = seconds[DCPK_WAY_A2A] = INFINITY;
	for (w = 0; w < 3; w++)
		seconds[w] *= m->layers;
}

double
dcpd_way_break_even(const struct dcpk_model *m, const struct dcpk_topo *t,
    enum dcpk_kv kv, const struct dcpk_speed *v)
{
	double D = t->dcp, link = (D - 1) / D / v->copy_bytes_s;
	double heads = (double)m->heads / t->world * D;
	double el = kv == DCPK_KV_F32 ? 4 : 2;
	double row = dcpk_row_bytes(kv, m->kv_lora, m->rope);
	double flops = 2.0 * m->topk * heads * (2.0 * m->kv_lora + m->rope) / D;
	double q, ratio;

	if (t->dcp == 1 || t->cp > 1)
		return -1;
	/* q more than kv, of one row, over what a cached row costs kv */
	q = heads * (2.0 * m->kv_lora + m->rope) * el * link +
	    flops / v->attend_flops_s - flops / v->attend_own_flops_s;
	ratio = q / (row * link);
	return ratio > 0 ? ratio : 0;
}
