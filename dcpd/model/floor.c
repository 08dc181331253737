/*
 * The floor of a pass; see floor.h. Pure, any thread.
 *
 * Read, once each: the weights that the pass needs, as the backend keeps them
 * (wbytes.c), the rows that a token selects and, where there are more keys
 * than it may select, all index keys. On CUDA every rank has, and reads, its
 * copy of what is not split; on the CPU ranks share one copy and one search.
 * What ranks under CP hold alike is read once among them, each its heads. A
 * group of D ranks holds one copy of a context, W/D groups hold as many.
 *
 * Of E experts n tokens hit E * (1 - (1 - K/E)^n), as if each chose K at
 * random. Rows and keys that several tokens of a request share count once;
 * what a pass writes, and all activations, do not count.
 *
 * Multiplied: each product once over all ranks, as if none did another's work
 * again; attention in the absorbed form, kv_lora + rope and kv_lora a key.
 */
#include "config.h"

#include <math.h>

#include "dcpd/model/floor.h"
#include "dcpd/model/quant.h"
#include "dcpd/model/tensors.h"
#include "kernels/keep.h"

struct sum {
	const struct dcpd_floor_of *of;
	const struct dcpd_pass *pass;
	double tokens;
	double rank[DCPK_MAX_RANKS];	/* bytes */
	struct dcpd_floor *out;
};

/* Experts that n tokens hit. */
static double
experts_hit(const struct dcpk_model *m, double n)
{
	return m->experts * (1 - pow(1 - (double)m->experts_tok / m->experts,
	    n));
}

/* How many times the tensor's bytes count: for all experts the first stands. */
static double
times_read(const struct sum *s, enum dcpk_tensor t, double bytes_row,
    double bytes)
{
	if (t == DCPK_T_EMBED)
		return bytes > 0 ? s->tokens * bytes_row / bytes : 0;
	return dcpd_tensor_is_expert(t) ?
	    experts_hit(&s->of->cfg->m, s->tokens) : 1;
}

static void
add_bytes(struct sum *s, uint32_t layer, enum dcpk_tensor t,
    const struct dcpd_slice *sl, bool whole)
{
	const struct dcpd_floor_of *of = s->of;
	double bytes = (double)dcpd_slice_bytes(of->cfg, of->topo, of->cpu,
	    of->flags, layer, t, 0, sl);
	double n = sl->n1 - sl->n0;
	uint64_t left;

	bytes *= times_read(s, t, n > 0 ? bytes / n : 0, bytes);
	s->out->weights += whole && !of->cpu ? bytes * of->topo->world : bytes;
	if (whole && of->cpu) {
		s->rank[0] += bytes;
		return;
	}
	/* Heads that several ranks hold under CP: each reads its part. */
	if (!whole)
		bytes /= __builtin_popcountll(sl->ranks);
	for (left = sl->ranks; left != 0; left &= left - 1)
		s->rank[__builtin_ctzll(left)] += bytes;
}

static void
add_flops(struct sum *s, uint32_t layer, enum dcpk_tensor t, uint32_t n,
    uint32_t k, const struct dcpd_slice *sl)
{
	const struct dcpd_floor_of *of = s->of;
	struct dcpd_wform f = dcpd_quant_form(of->cfg, layer, t, 0);
	double flops = 2.0 * n * k *
	    (t == DCPK_T_LM_HEAD ? s->pass->requests : s->tokens);

	if (dcpd_tensor_is_vector(t) || t == DCPK_T_EMBED)
		return;
	if (dcpd_tensor_is_expert(t))
		flops *= of->cfg->m.experts_tok;
	if (!of->cpu && (dcpk_keeps_fp8(of->flags, of->topo->cp, t, f.fmt,
	    f.block_n, f.block_k, sl->n0, sl->n1, sl->k0, sl->k1) ||
	    dcpk_keeps_int4(of->flags, t, f.fmt, f.block_k, sl->n0, sl->n1,
	    sl->k0, sl->k1)))
		flops /= 2;
	s->out->products += flops;
}

static int
add_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct sum *s = arg;
	const struct dcpk_topo *topo = s->of->topo;
	const struct dcpk_model *m = &s->of->cfg->m;
	struct dcpd_slice sl[DCPK_MAX_RANKS];
	uint32_t n, k, slices, i;

	if (layer >= m->layers || (dcpd_tensor_is_expert(t) && expert != 0))
		return 0;
	dcpd_tensor_shape(m, t, &n, &k);
	slices = dcpd_slices(m, topo, t, n, k, sl);
	for (i = 0; i < slices; i++)
		add_bytes(s, layer, t, &sl[i], slices == 1 &&
		    !dcpd_tensor_by_head(t));
	add_flops(s, layer, t, n, k, &sl[0]);
	return 0;
}

/* Rows and keys of the pools, with the flops made of them. */
static void
add_context(struct sum *s)
{
	const struct dcpd_floor_of *of = s->of;
	const struct dcpk_model *m = &of->cfg->m;
	const struct dcpd_pass *p = s->pass;
	double L = p->prefix + p->rows, D = of->topo->dcp, k = m->topk;
	/* Rows of a request that see no more keys than they may select. */
	double few = fmin(fmax(k - p->prefix, 0), p->rows);
	double many = p->rows - few, full = 0;
	double attended = few * p->prefix + few * (few + 1) / 2 + many * k;
	double scored = many * p->prefix +
	    (p->rows * (p->rows + 1) - few * (few + 1)) / 2;
	double rows = p->requests * fmin(L, k) * m->layers *
	    dcpk_row_bytes(of->kv, m->kv_lora, m->rope);
	double keys;
	uint32_t r, holders = of->cpu ? of->topo->dcp : of->topo->world;

	for (r = 0; r < m->layers; r++)
		full += m->full[r] != 0;
	keys = L <= k ? 0 : p->requests * L * full *
	    dcpk_index_bytes(of->idx, m->idx_dim);
	s->out->rows = rows / D * of->topo->world;
	s->out->keys = keys / D * holders;
	for (r = 0; r < of->topo->world; r++)
		s->rank[r] += (rows + (r < holders ? keys : 0)) / D;
	s->out->attend = 2.0 * p->requests * attended * m->heads *
	    (2.0 * m->kv_lora + m->rope) * m->layers;
	s->out->scores = 2.0 * p->requests * scored * m->idx_heads *
	    m->idx_dim * full;
	if (!of->cpu && of->idx == DCPK_KV_FP8)
		s->out->scores /= 2;
}

static void
time_it(struct dcpd_floor *f, const struct dcpk_speed *v)
{
	double read = 0, flop = 0;

	f->read_bytes_s = v->read_bytes_s;
	f->flops_s = v->flops_s;
	if (v->read_bytes_s > 0)
		read = (f->weights + f->rows + f->keys) / v->read_bytes_s;
	if (v->flops_s > 0)
		flop = (f->products + f->scores + f->attend) / v->flops_s;
	f->by_flops = flop > read;
	f->seconds = fmax(flop, read);
}

void
dcpd_floor(const struct dcpd_floor_of *of, const struct dcpk_speed *v,
    const struct dcpd_pass *pass, struct dcpd_floor *out)
{
	struct sum s = { .of = of, .pass = pass, .out = out,
	    .tokens = pass->requests * pass->rows };
	uint32_t r;

	*out = (struct dcpd_floor){ 0 };
	dcpd_tensors_each(&of->cfg->m, add_tensor, &s);
	add_context(&s);
	for (r = 0; r < of->topo->world; r++)
		out->rank = fmax(out->rank, s.rank[r]);
	time_it(out, v);
}
