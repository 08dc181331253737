/*
 * Bytes that the weights will take on each rank, before any is loaded. Pure,
 * any thread. A mirror of what the backends keep: the CPU keeps bf16 matrices
 * as they are, everything else as f32, and one copy of what several ranks
 * share (charged to the lowest of them); CUDA keeps a copy on each rank, in the
 * forms of kernels/keep.h.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/model/quant.h"
#include "dcpd/model/tensors.h"
#include "kernels/keep.h"

struct count {
	const struct dcpd_model_config *cfg;
	const struct dcpk_topo *topo;
	bool cpu;
	uint32_t flags;			/* as in struct dcpk_setup */
	struct dcpk_bytes *out;
};

/* The module's part; struct dcpd_slice is the whole slice that a rank keeps. */
static uint64_t
cuda_bytes(const struct dcpd_model_config *cfg, const struct dcpk_topo *topo,
    uint32_t flags, uint32_t layer, enum dcpk_tensor t,
    const struct dcpd_wform *f, const struct dcpd_slice *s)
{
	uint64_t n = s->n1 - s->n0, k = s->k1 - s->k0;

	if (layer >= cfg->m.layers)
		return 0;
	if (dcpk_keeps_f32(t))
		return n * k * 4;
	if (dcpk_keeps_fp8(flags, topo->cp, t, f->fmt, f->block_n,
	    f->block_k, s->n0, s->n1, s->k0, s->k1))
		return dcpk_fp8_bytes(n, k);
	if (dcpk_keeps_int4(flags, t, f->fmt, f->block_k, s->n0, s->n1, s->k0,
	    s->k1))
		return dcpk_int4_bytes(n, k);
	return n * k * 2;
}

uint64_t
dcpd_slice_bytes(const struct dcpd_model_config *cfg,
    const struct dcpk_topo *topo, bool cpu, uint32_t flags, uint32_t layer,
    enum dcpk_tensor t, uint32_t expert, const struct dcpd_slice *s)
{
	struct dcpd_wform f = dcpd_quant_form(cfg, layer, t, expert);
	uint64_t n = s->n1 - s->n0, k = s->k1 - s->k0;

	if (!cpu)
		return cuda_bytes(cfg, topo, flags, layer, t, &f, s);
	if (dcpd_tensor_is_vector(t) || t == DCPK_T_ROUTER ||
	    f.fmt != DCPK_W_BF16)
		return n * k * 4;
	return n * k * 2;
}

/* The line of the plan that the slice is charged to. */
static uint64_t *
line(const struct count *c, uint32_t layer, enum dcpk_tensor t, uint64_t ranks,
    struct dcpk_bytes *b)
{
	bool shared = (ranks & (ranks - 1)) != 0;

	if (layer >= c->cfg->m.layers)
		return &b->weights_mtp;
	if (shared && dcpd_tensor_by_head(t))
		return &b->weights_attn;
	return shared ? &b->weights_rep : &b->weights;
}

static int
count_tensor(void *arg, uint32_t layer, enum dcpk_tensor t, uint32_t expert)
{
	struct count *c = arg;
	struct dcpd_slice s[DCPK_MAX_RANKS];
	uint32_t n, k, i, n_slices, r;
	uint64_t left;

	dcpd_tensor_shape(&c->cfg->m, t, &n, &k);
	n_slices = dcpd_slices(&c->cfg->m, c->topo, t, n, k, s);
	for (i = 0; i < n_slices; i++) {
		uint64_t bytes = dcpd_slice_bytes(c->cfg, c->topo, c->cpu,
		    c->flags, layer, t, expert, &s[i]);

		for (left = s[i].ranks; left != 0; left &= left - 1) {
			r = (uint32_t)__builtin_ctzll(left);
			*line(c, layer, t, s[i].ranks, &c->out[r]) += bytes;
			if (c->cpu)
				break;
		}
	}
	return 0;
}

int
dcpd_weights_bytes(const struct dcpd_model_config *cfg,
    const struct dcpk_topo *topo, const char *device, uint32_t flags,
    struct dcpk_bytes *out)
{
	struct count c = { .cfg = cfg, .topo = topo, .flags = flags,
	    .cpu = strcmp(device, "cpu") == 0, .out = out };
	uint32_t r;

	if (!c.cpu && strcmp(device, "cuda") != 0)
		return -EINVAL;
	for (r = 0; r < topo->world; r++)
		out[r].weights = out[r].weights_attn = out[r].weights_rep =
		    out[r].weights_mtp = 0;
	return dcpd_tensors_each(&cfg->m, count_tensor, &c);
}
