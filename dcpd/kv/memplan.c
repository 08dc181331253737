/*
 * The memory plan: bytes of each rank before anything is loaded, and how many
 * pages they leave room for. Main thread, or `dcpctl plan`; nothing here needs
 * a device.
 *
 * A page is 64 tokens whatever D is, so at D a rank holds 64/D rows of it and
 * its bytes are exactly those at 1 divided by D. Each pool has one page more
 * than it serves, the sink that padding rows write to; it is charged. Hence
 * D*pages(1) <= pages(D) < D*(pages(1)+2) from the same bytes.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dcpd/kv/memplan.h"
#include "kernels/comm.h"
#include "kernels/graphs.h"
#include "kernels/mirror.h"

/* Pool rows are counted in 32 bits, the sink's included. */
#define PAGES_MAX (UINT32_MAX / DCPD_PAGE_TOKENS - 1)

enum dcpk_kv
dcpd_index_format(enum dcpk_kv kv, const struct dcpk_model *m)
{
	if (kv == DCPK_KV_F32)
		return DCPK_KV_F32;
	return kv == DCPK_KV_FP8 || m->idx_dim == 128 ? DCPK_KV_FP8 :
	    DCPK_KV_BF16;
}

int
dcpd_kv_format_check(enum dcpk_kv kv, const struct dcpk_model *m,
    struct dcpd_err *err)
{
	static const struct {
		const char *key;
		uint32_t must;
	} rule[] = {
		{ "kv_lora_rank", 512 }, { "qk_rope_head_dim", 64 },
		{ "index_head_dim", 128 },
	};
	uint32_t is[] = { m->kv_lora, m->rope, m->idx_dim };
	size_t i;

	for (i = 0; kv == DCPK_KV_FP8 && i < 3; i++)
		if (is[i] != rule[i].must)
			return dcpd_fail(err, -EINVAL, "--kv-cache-dtype "
			    "fp8_e4m3: needs a model with %s %u, this one has "
			    "%u; use bf16", rule[i].key, rule[i].must, is[i]);
	return 0;
}

void
dcpd_memplan_setup(const struct dcpd_memplan_in *in,
    const struct dcpk_topo *topo, uint32_t pages, uint32_t host_pages,
    struct dcpk_setup *s)
{
	*s = (struct dcpk_setup){
		.model = in->cfg->m, .topo = *topo, .kv = in->kv,
		.idx = in->idx, .pages = pages, .host_pages = host_pages,
		.max_rows = in->max_running,
		.max_prefill = in->chunk, .max_reqs = in->max_running,
		.max_ctx = in->max_ctx, .threads = in->threads,
		.flags = in->flags, .ranks_per_gpu = in->ranks_per_gpu,
		.comm = in->comm, .wire = in->wire,
		.graph_rows = in->graph_rows,
	};
}

static void
page_bytes(const struct dcpd_memplan_in *in, struct dcpd_memplan *p)
{
	const struct dcpk_model *m = &in->cfg->m;
	uint64_t rows = dcpk_page_rows(in->layout.dcp), full = 0;
	uint32_t i;

	for (i = 0; i < m->layers; i++)
		full += m->full[i] != 0;
	p->page_bytes_rows = rows * m->layers *
	    dcpk_row_bytes(in->kv, m->kv_lora, m->rope);
	p->page_bytes_index = rows * full *
	    dcpk_index_bytes(in->idx, m->idx_dim);
}

/* Pages that `bytes` hold beside the sink page. */
static uint32_t
pages_of(uint64_t bytes, uint64_t page)
{
	uint64_t n = bytes / page;

	return n == 0 ? 0 : (uint32_t)dcpd_min64(n - 1, PAGES_MAX);
}

/*
 * CUDA's buffers of one rank, from their shapes: hidden states, queries and
 * outputs of a chunk, gathered rows and index keys of the longest request,
 * scores, logits. Its module counts them exactly; here they are an estimate.
 */
static uint64_t
estimate_workspace(const struct dcpd_memplan_in *in,
    const struct dcpk_topo *t)
{
	const struct dcpk_model *m = &in->cfg->m;
	uint64_t M = in->chunk > in->max_running ? in->chunk :
	    in->max_running;
	uint64_t group = m->heads / t->world * (t->cp > t->dcp ? t->cp :
	    t->dcp);
	uint64_t row = 4 * m->hidden + 2 * m->q_lora +
	    2 * group * (2 * m->kv_lora + m->rope) +
	    2 * m->idx_heads * m->idx_dim + m->topk * 4 +
	    2 * (uint64_t)m->experts_tok * m->hidden;

	return M * row + (uint64_t)in->max_ctx *
	    (dcpk_row_bytes(in->kv, m->kv_lora, m->rope) +
	    dcpk_index_bytes(in->idx, m->idx_dim)) +
	    (uint64_t)in->max_running * (in->max_ctx * 4ull / t->dcp +
	    m->vocab * 4ull / t->world);
}

/* Who counts the workspace; NULL: an estimate must do. */
static const struct dcpk_backend *
backend_of(const struct dcpd_memplan_in *in)
{
	if (in->backend == NULL && strcmp(in->device, "cpu") == 0)
		return &dcpk_cpu;
	return in->backend;
}

/* Weights and workspace of each rank: what does not depend on the pages. */
static int
fixed_bytes(const struct dcpd_memplan_in *in, const struct dcpk_topo *topo,
    struct dcpd_memplan *p, struct dcpd_err *err)
{
	const struct dcpk_backend *be = backend_of(in);
	struct dcpk_setup s;
	uint32_t r;
	int rc;

	if (strcmp(in->device, "cpu") != 0 && in->kv == DCPK_KV_F32)
		return dcpd_fail(err, -EINVAL, "--kv-cache-dtype f32: for "
		    "--device cpu only; use bf16 or fp8_e4m3");
	if (be != NULL) {
		dcpd_memplan_setup(in, topo, 1, 0, &s);
		rc = be->bytes(&s, p->rank);
		if (rc != 0)
			return dcpd_fail(err, rc, "%s: counting the "
			    "workspace: %s", be->name, strerror(-rc));
	} else {
		p->workspace_estimated = true;
		dcpd_memplan_setup(in, topo, 1, 0, &s);
		for (r = 0; r < topo->world; r++) {
			p->rank[r].workspace = estimate_workspace(in, topo) +
			    dcpk_mirror_bytes(&s, r);
			p->rank[r].graphs = dcpk_graph_bytes(&s);
			p->rank[r].comm = dcpk_comm_bytes(&s);
		}
	}
	rc = dcpd_weights_bytes(in->cfg, topo, in->device, in->flags,
	    p->rank);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "--device %s: no such device",
	    in->device);
}

static uint64_t
fixed_of(const struct dcpk_bytes *b)
{
	return b->weights + b->weights_attn + b->weights_rep +
	    b->weights_mtp + b->workspace + b->graphs + b->comm;
}

/*
 * The rank that has most besides KV, and what it has. On the CPU all ranks
 * share the machine: their mean counts.
 */
static uint64_t
fixed_most(const struct dcpd_memplan_in *in, const struct dcpd_memplan *p,
    uint32_t *rank)
{
	uint64_t most = 0, sum = 0;
	uint32_t r;

	*rank = 0;
	for (r = 0; r < p->world; r++) {
		uint64_t b = fixed_of(&p->rank[r]);

		sum += b;
		if (b > most) {
			most = b;
			*rank = r;
		}
	}
	return strcmp(in->device, "cpu") == 0 ? dcpd_div_up(sum, p->world) :
	    most;
}

/* Whom a number is about: "rank 3", or on the CPU "each of 8 ranks". */
static const char *
who(const struct dcpd_memplan_in *in, uint32_t rank, char buf[32])
{
	if (strcmp(in->device, "cpu") == 0 && in->layout.tp > 1)
		snprintf(buf, 32, "each of %u ranks", in->layout.tp);
	else
		snprintf(buf, 32, "rank %u", rank);
	return buf;
}

/* An error, or with report_only a text in the plan. */
static int __attribute__((format(printf, 4, 5)))
misfit(const struct dcpd_memplan_in *in, struct dcpd_memplan *p,
    struct dcpd_err *err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->misfit, sizeof p->misfit, fmt, ap);
	va_end(ap);
	return in->report_only ? 0 :
	    dcpd_fail(err, -ENOSPC, "%s", p->misfit);
}

/* KV bytes of one rank, from the flag or from the fraction. */
static int
find_budget(const struct dcpd_memplan_in *in, struct dcpd_memplan *p,
    struct dcpd_err *err)
{
	double limit = in->mem_fraction * (double)in->device_bytes;
	char a[32], b[32], c[32], w[32];
	uint64_t fixed;
	uint32_t r;

	if (in->kv_bytes_per_rank != 0) {
		p->budget = in->kv_bytes_per_rank;
		return 0;
	}
	if (in->device_bytes == 0)
		return 0;
	if (!(in->mem_fraction > 0 && in->mem_fraction <= 1))
		return dcpd_fail(err, -EINVAL, "--mem-fraction-static %g: "
		    "must be above 0 and at most 1", in->mem_fraction);
	fixed = fixed_most(in, p, &r);
	if ((double)fixed < limit) {
		p->budget = (uint64_t)limit - fixed;
		return 0;
	}
	return misfit(in, p, err, "%s: weights and workspace take %s, "
	    "--mem-fraction-static %g of %s is %s: nothing is left for KV; "
	    "raise it, raise --tp, or lower --chunked-prefill-size or "
	    "--max-context", who(in, r, w), dcpd_bytes(a, sizeof a, fixed),
	    in->mem_fraction, dcpd_bytes(b, sizeof b, in->device_bytes),
	    dcpd_bytes(c, sizeof c, (uint64_t)limit));
}

/*
 * Pages that host memory holds beside the pool's: whole ones, with the parts
 * of all D ranks.
 */
static int
find_host(const struct dcpd_memplan_in *in, struct dcpd_memplan *p,
    struct dcpd_err *err)
{
	uint64_t page = (p->page_bytes_rows + p->page_bytes_index) * p->D;
	char a[32], b[32];

	if (in->host_cache_bytes == 0)
		return 0;
	p->host_pages = (uint32_t)dcpd_min64(in->host_cache_bytes / page,
	    PAGES_MAX);
	p->host_bytes = p->host_pages * page;
	return p->host_pages > 0 ? 0 : dcpd_fail(err, -EINVAL,
	    "--host-cache-bytes %s: a page takes %s; give more, or 0",
	    dcpd_bytes(a, sizeof a, in->host_cache_bytes),
	    dcpd_bytes(b, sizeof b, page));
}

/* Everything together against the device. */
static int
check_total(const struct dcpd_memplan_in *in, struct dcpd_memplan *p,
    struct dcpd_err *err)
{
	uint64_t page = p->page_bytes_rows + p->page_bytes_index, fixed, kv;
	bool cpu = strcmp(in->device, "cpu") == 0;
	char a[32], b[32], c[32], d[32], e[32], w[32];
	uint64_t host = cpu ? dcpd_div_up(p->host_bytes, p->world) : 0;
	uint32_t r;

	if (p->misfit[0] != '\0' || p->budget == 0)
		return 0;
	if (p->pages == 0)
		return misfit(in, p, err, "each rank: %s for KV hold no page: "
		    "two take %s (one is for padding); raise %s",
		    dcpd_bytes(a, sizeof a, p->budget),
		    dcpd_bytes(b, sizeof b, 2 * page),
		    in->kv_bytes_per_rank != 0 ? "--kv-bytes-per-rank" :
		    "--mem-fraction-static");
	fixed = fixed_most(in, p, &r);
	kv = (p->pages + 1ull) * page;
	if (in->device_bytes == 0 || fixed + kv + host <= in->device_bytes)
		return 0;
	return misfit(in, p, err, "%s: weights and workspace take %s, KV "
	    "%s%s%s, together %s; the device has %s for it: lower "
	    "--kv-bytes-per-rank%s, or raise --tp", who(in, r, w),
	    dcpd_bytes(a, sizeof a, fixed), dcpd_bytes(b, sizeof b, kv),
	    host > 0 ? ", --host-cache-bytes " : "",
	    host > 0 ? dcpd_bytes(e, sizeof e, host) : "",
	    dcpd_bytes(c, sizeof c, fixed + kv + host),
	    dcpd_bytes(d, sizeof d, in->device_bytes),
	    host > 0 ? " or --host-cache-bytes" : "");
}

/* The pools of each rank, and that the backend will allocate just these. */
static int
charge_pools(const struct dcpd_memplan_in *in, const struct dcpk_topo *topo,
    struct dcpd_memplan *p, struct dcpd_err *err)
{
	const struct dcpk_backend *be = backend_of(in);
	struct dcpk_bytes asked[DCPK_MAX_RANKS];
	uint64_t n = p->pages == 0 ? 0 : p->pages + 1ull;
	struct dcpk_setup s;
	uint32_t r;

	for (r = 0; r < p->world; r++) {
		p->rank[r].rows = n * p->page_bytes_rows;
		p->rank[r].index = n * p->page_bytes_index;
	}
	p->rank[0].host = p->host_bytes;
	if (be == NULL || n == 0)
		return 0;
	dcpd_memplan_setup(in, topo, p->pages, p->host_pages, &s);
	if (be->bytes(&s, asked) != 0)
		return dcpd_fail(err, -ENOMEM, "%s: counting the pools: no "
		    "memory", be->name);
	for (r = 0; r < p->world; r++)
		DCPD_ASSERT(asked[r].rows == p->rank[r].rows &&
		    asked[r].index == p->rank[r].index &&
		    asked[r].host == p->rank[r].host &&
		    asked[r].workspace == p->rank[r].workspace &&
		    asked[r].graphs == p->rank[r].graphs &&
		    asked[r].comm == p->rank[r].comm);
	return 0;
}

int
dcpd_memplan(const struct dcpd_memplan_in *in, struct dcpd_memplan *out,
    struct dcpd_err *err)
{
	struct dcpd_memplan p = { .world = in->layout.tp,
	    .D = in->layout.dcp };
	struct dcpk_topo topo;
	uint64_t page;
	int rc;

	rc = dcpd_topology(&in->layout, &in->cfg->m, &topo, err);
	if (rc == 0)
		rc = dcpd_kv_format_check(in->kv, &in->cfg->m, err);
	if (rc == 0)
		rc = fixed_bytes(in, &topo, &p, err);
	if (rc == 0)
		rc = find_budget(in, &p, err);
	if (rc != 0)
		return rc;
	page_bytes(in, &p);
	page = p.page_bytes_rows + p.page_bytes_index;
	p.pages = pages_of(p.budget, page);
	p.tokens = (uint64_t)p.pages * DCPD_PAGE_TOKENS;
	p.tokens_tp = (uint64_t)pages_of(p.budget, page * p.D) *
	    DCPD_PAGE_TOKENS;
	rc = find_host(in, &p, err);
	if (rc == 0)
		rc = check_total(in, &p, err);
	if (rc == 0)
		rc = charge_pools(in, &topo, &p, err);
	if (rc == 0)
		*out = p;
	return rc;
}
