/*
 * fwd: the forward pass alone, for the parity tests. It reads one JSON job a
 * line, runs it on the CPU backend through the same calls as the daemon, and
 * answers with one JSON line; logits and selections go to binary files.
 *
 * A job opens its own device, so layouts, formats and chunk sizes can be
 * mixed in one run. Scheduling is the plainest that is still continuous
 * batching: up to `batch` requests at once, prefill passes of up to `chunk`
 * rows over several requests, then a decode pass over all that are past
 * prefill. Pages come from a shuffled free list and are used again, so that
 * no result can rest on page 0 being first or on zeroed memory.
 *
 * One thread (the backend starts its own workers). See doc/testing.md for the
 * fields of a job.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "dcpd/base/base.h"
#include "dcpd/model/model.h"
#include "dcpd/parallel/topology.h"
#include "dcpd/text/text.h"
#include "tests/parity/fwd.h"

static const struct dcpk_backend *be = &dcpk_cpu;

/* FWD_MODULE: a device's module to run on instead of the CPU. */
static void
device_load(void)
{
	const char *path = getenv("FWD_MODULE");
	dcpk_backend_get_fn *get = NULL;
	void *so;

	if (path == NULL)
		return;
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (so != NULL)
		*(void **)&get = dlsym(so, "dcpk_backend_get");
	if (get == NULL || get(DCPK_ABI) == NULL) {
		fprintf(stderr, "fwd: %s: %s\n", path, so == NULL ?
		    dlerror() : "no backend of this ABI");
		exit(2);
	}
	be = get(DCPK_ABI);
}

void *
fwd_alloc(size_t n)
{
	void *p = calloc(1, n ? n : 1);

	if (p == NULL) {
		fprintf(stderr, "fwd: no memory for %zu bytes\n", n);
		exit(2);
	}
	return p;
}

/* --- the job ------------------------------------------------------------ */

static int
pick(json_t *o, const char *key, const char *const *names, int def,
    struct dcpd_err *err)
{
	const char *s = json_string_value(json_object_get(o, key));

	if (s == NULL)
		return def;
	for (int i = 0; names[i] != NULL; i++)
		if (strcmp(names[i], s) == 0)
			return i;
	return dcpd_fail(err, -EINVAL, "%s: \"%s\" is not known", key, s);
}

static uint32_t
number(json_t *o, const char *key, uint32_t def)
{
	json_t *v = json_object_get(o, key);

	return v == NULL ? def : (uint32_t)json_integer_value(v);
}

static bool
truth(json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

static int
job_read(json_t *o, struct job *j, struct dcpd_err *err)
{
	static const char *const kvs[] = { "f32", "bf16", "fp8", NULL };
	static const char *const ways[] = { "q", "kv", "a2a", NULL };
	static const char *const cps[] = { "interleave", "zigzag", NULL };
	static const char *const comms[] = { "event", "peer", "nccl", NULL };
	static const char *const wires[] = { "f32", "bf16", "fp8", NULL };
	int kv, idx, way, cp, comm, wire;

	kv = pick(o, "kv", kvs, DCPK_KV_F32, err);
	idx = pick(o, "idx", kvs, kv, err);
	way = pick(o, "way", ways, DCPK_WAY_KV, err);
	cp = pick(o, "strategy", cps, DCPK_CP_INTERLEAVE, err);
	comm = pick(o, "comm", comms, DCPK_COMM_EVENT, err);
	wire = pick(o, "wire", wires, be == &dcpk_cpu ? DCPK_WIRE_F32 :
	    DCPK_WIRE_BF16, err);
	if (kv < 0 || idx < 0 || way < 0 || cp < 0 || comm < 0 || wire < 0)
		return err->code;
	j->wire = (enum dcpk_wire)wire;
	j->comm = (enum dcpk_comm)comm;
	j->graph_rows = number(o, "graph_rows", 0);
	j->model = json_string_value(json_object_get(o, "model"));
	j->out = json_string_value(json_object_get(o, "out"));
	j->prompts = json_object_get(o, "prompts");
	j->forced = json_object_get(o, "forced");
	j->allowed = json_object_get(o, "allowed");
	j->stretch = number(o, "stretch", 0);
	j->fill = truth(o, "fill");
	j->rehouse = truth(o, "rehouse");
	if (j->model == NULL || !json_is_array(j->prompts))
		return dcpd_fail(err, -EINVAL, "model or prompts missing");
	j->kv = (enum dcpk_kv)kv;
	j->idx = (enum dcpk_kv)idx;
	j->way = (enum dcpk_way)way;
	j->layout.strategy = (enum dcpk_cp_strategy)cp;
	j->layout.tp = number(o, "tp", 1);
	j->layout.dp = 1;
	j->layout.cp = number(o, "cp", 1);
	j->layout.dcp = number(o, "dcp", 1);
	j->chunk = number(o, "chunk", 512);
	j->batch = number(o, "batch", 8);
	j->decode = number(o, "decode", 0);
	j->decode_rows = number(o, "decode_rows", 1);
	j->threads = number(o, "threads", 1);
	j->seed = number(o, "seed", 1);
	j->pages = number(o, "pages", 0);
	j->max_ctx = number(o, "max_ctx", 0);
	j->ranks_per_gpu = number(o, "ranks_per_gpu", 1);
	j->all_logits = truth(o, "all_logits");
	j->select = truth(o, "select");
	j->dummy = truth(o, "dummy");
	j->any_number = truth(o, "any_number");
	j->latent_eps_config = truth(o, "latent_eps_config");
	j->check_gather = truth(o, "check_gather");
	j->check_replicas = truth(o, "check_replicas");
	j->keep_all_pages = truth(o, "keep_all_pages");
	j->stop_at_eos = truth(o, "stop_at_eos");
	j->flags = DCPK_GUARD | (j->select ? DCPK_KEEP_SELECT : 0) |
	    (truth(o, "quant_act") ? DCPK_QUANT_ACT : 0) |
	    (truth(o, "fp8_weights") ? DCPK_FP8_WEIGHTS : 0) |
	    (truth(o, "no_peers") ? DCPK_NO_PEERS : 0);
	if (j->batch == 0 || j->batch > MAX_BATCH || j->chunk == 0 ||
	    j->decode_rows == 0)
		return dcpd_fail(err, -EINVAL, "batch or chunk out of range");
	return 0;
}

static void
ids_read(json_t *a, uint32_t *to)
{
	size_t i;
	json_t *v;

	json_array_foreach(a, i, v)
		to[i] = (uint32_t)json_integer_value(v);
}

static int
seqs_read(struct run *r, struct dcpd_err *err)
{
	struct job *j = &r->j;

	r->n_seqs = (uint32_t)json_array_size(j->prompts);
	r->seqs = fwd_alloc(r->n_seqs * sizeof(*r->seqs));
	for (uint32_t i = 0; i < r->n_seqs; i++) {
		struct seq *s = &r->seqs[i];
		json_t *p = json_array_get(j->prompts, i);
		json_t *f = json_array_get(j->forced, i);
		uint32_t nf = (uint32_t)json_array_size(f);

		s->id = i;
		s->prompt = (uint32_t)json_array_size(p);
		s->target = (j->stretch ? j->stretch : s->prompt) + j->decode;
		if (j->stretch % DCPK_PAGE != 0 || (j->stretch != 0 &&
		    (s->prompt % DCPK_PAGE != 0 || s->prompt > j->stretch)))
			return dcpd_fail(err, -EINVAL, "stretch: whole pages, "
			    "no fewer than the prompt's");
		if (s->prompt == 0 || nf > j->decode)
			return dcpd_fail(err, -EINVAL, "prompt %u: empty, or "
			    "forced longer than decode", i);
		s->ids = fwd_alloc((s->target + 1) * sizeof(uint32_t));
		ids_read(p, s->ids);
		ids_read(f, s->ids + s->prompt);
		s->forced = s->have = s->prompt + nf;
		s->n_pages = (s->target + DCPK_PAGE - 1) / DCPK_PAGE;
		s->n_own = s->n_pages - (j->stretch == 0 || j->fill ? 0 :
		    (j->stretch - s->prompt) / DCPK_PAGE);
		s->pages = fwd_alloc(s->n_pages * sizeof(uint32_t));
		if (j->max_ctx < s->target)
			j->max_ctx = s->target;
	}
	return 0;
}

/* --- one pass ----------------------------------------------------------- */

struct part {			/* rows of one request in a pass */
	struct seq *s;
	uint32_t rows;
};

static struct dcpk_plan *
plan_build(struct run *r, enum dcpk_pass pass, const struct part *parts,
    uint32_t n)
{
	struct dcpk_plan *p = (struct dcpk_plan *)(void *)r->plan;
	uint32_t off = sizeof(*p), nr = 0, np = 0, ns = 0;
	struct dcpk_row *rows;
	struct dcpk_req *reqs;
	struct dcpk_sample *smp;
	uint32_t *pages;

	memset(p, 0, sizeof(*p));
	for (uint32_t i = 0; i < n; i++) {
		nr += parts[i].rows;
		np += parts[i].s->n_pages;
	}
	*p = (struct dcpk_plan){ .magic = DCPK_PLAN_MAGIC,
	    .version = DCPK_PLAN_VERSION, .pass = pass, .way = r->j.way,
	    .n_rows = nr, .n_reqs = n, .n_pages = np };
	p->samples_off = off = (off + 7) & ~7u;	/* the u64 in it */
	off += nr * (uint32_t)sizeof(*smp);
	p->rows_off = off;
	off += nr * (uint32_t)sizeof(*rows);
	p->reqs_off = off;
	off += n * (uint32_t)sizeof(*reqs);
	p->pages_off = off;
	off += np * (uint32_t)sizeof(uint32_t);
	p->adjusts_off = p->mask_off = off;
	p->n_mask = r->mask != NULL;
	off += p->n_mask * r->mask_words * (uint32_t)sizeof(uint32_t);
	p->bytes = off;
	if (r->mask != NULL)
		memcpy(r->plan + p->mask_off, r->mask, r->mask_words * 4);
	rows = (void *)(r->plan + p->rows_off);
	reqs = (void *)(r->plan + p->reqs_off);
	pages = (void *)(r->plan + p->pages_off);
	smp = (void *)(r->plan + p->samples_off);
	memset(smp, 0, nr * sizeof(*smp));
	nr = np = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct seq *s = parts[i].s;

		reqs[i] = (struct dcpk_req){ .row0 = nr, .rows = parts[i].rows,
		    .page0 = np, .pages = s->n_pages, .prefix = s->cached };
		memcpy(pages + np, s->pages, s->n_pages * sizeof(uint32_t));
		np += s->n_pages;
		for (uint32_t k = 0; k < parts[i].rows; k++, nr++) {
			uint32_t pos = s->cached + k;

			rows[nr] = (struct dcpk_row){ .req = i, .pos = pos,
			    .token = s->ids[pos],
			    .page = s->pages[pos / DCPK_PAGE] };
			if (pos + 1 < s->prompt && !r->j.all_logits)
				continue;
			smp[ns++] = (struct dcpk_sample){ .row = nr,
			    .flags = DCPK_S_GREEDY |
			    (r->mask != NULL ? DCPK_S_MASK : 0), .top_p = 1,
			    .repetition = 1, .n_top = 2 };
		}
	}
	p->n_samples = ns;
	return p;
}

static bool
is_eos(const struct dcpd_model_config *cfg, uint32_t token)
{
	for (uint32_t i = 0; i < cfg->n_eos; i++)
		if (cfg->eos[i] == token)
			return true;
	return false;
}

static bool
allowed(const struct run *r, uint32_t v)
{
	return r->mask == NULL || (r->mask[v / 32] >> v % 32 & 1);
}

/* Lowest id on ties; *next: the best of the others. */
static uint32_t
arg_max(const struct run *r, const float *l, float *next)
{
	uint32_t best = UINT32_MAX;

	*next = -INFINITY;
	for (uint32_t v = 0; v < r->cfg.m.vocab; v++) {
		if (!allowed(r, v))
			continue;
		if (best == UINT32_MAX || l[v] > l[best]) {
			if (best != UINT32_MAX)
				*next = l[best];
			best = v;
		} else if (l[v] > *next) {
			*next = l[v];
		}
	}
	return best;
}

/* Logits of every sample to the file; the token must be their arg max. */
static int
take_logits(struct run *r, const struct dcpk_plan *p, struct part *parts,
    struct dcpd_err *err)
{
	const struct dcpk_sample *smp = DCPK_SAMPLES(p);
	const struct dcpk_row *rows = DCPK_ROWS(p);
	uint32_t V = r->cfg.m.vocab;
	size_t want = (size_t)p->n_samples * V * sizeof(float);
	int64_t got;

	if (p->n_samples == 0)
		return 0;
	got = be->peek(r->ctx, DCPK_PEEK_LOGITS, 0, 0, 0, r->logits, want);
	if (got != (int64_t)want)
		return dcpd_fail(err, -EIO, "peek logits: %" PRId64
		    " of %zu bytes", got, want);
	if (r->f_logits != NULL &&
	    fwrite(r->logits, 1, want, r->f_logits) != want)
		return dcpd_fail(err, -EIO, "cannot write logits");
	for (uint32_t i = 0; i < p->n_samples; i++) {
		const float *l = r->logits + (size_t)i * V;
		const struct dcpk_row *row = &rows[smp[i].row];
		struct seq *s = parts[row->req].s;
		float next;
		uint32_t best = arg_max(r, l, &next);

		if (!isnan(l[0]) && r->res[i].token != best)
			return dcpd_fail(err, -EIO, "sampled %u, but the arg "
			    "max is %u", r->res[i].token, best);
		json_array_append_new(r->entries, json_pack("[ii]", s->id,
		    row->pos));
		json_array_append_new(r->gaps, isfinite(l[best] - next) ?
		    json_real(l[best] - next) : json_null());
		if (row->pos + 1 != s->have || s->have >= s->target)
			continue;
		s->ids[s->have++] = r->res[i].token;
		if (r->j.stop_at_eos && is_eos(&r->cfg, r->res[i].token))
			s->target = s->have;
	}
	return 0;
}

/* Selections of every row and full layer: u32 req, pos, layer, n, pos[n]. */
static int
take_select(struct run *r, const struct dcpk_plan *p, struct part *parts,
    struct dcpd_err *err)
{
	const struct dcpk_row *rows = DCPK_ROWS(p);
	uint32_t k = r->cfg.m.topk, *buf = fwd_alloc((k + 1) * 4);
	int rc = 0;

	for (uint32_t l = 0; rc == 0 && l < r->cfg.m.layers; l++)
		for (uint32_t i = 0; r->cfg.m.full[l] && i < p->n_rows; i++) {
			int64_t n = be->peek(r->ctx, DCPK_PEEK_SELECT, l, 0, i,
			    buf, (k + 1) * 4);
			uint32_t head[4] = { parts[rows[i].req].s->id,
			    rows[i].pos, l, (uint32_t)(n / 4) };

			if (n < 0 || n > k * 4) {
				rc = dcpd_fail(err, -EIO, "peek select: %"
				    PRId64, n);
				break;
			}
			fwrite(head, 4, 4, r->f_select);
			fwrite(buf, 4, (size_t)n / 4, r->f_select);
		}
	free(buf);
	return rc;
}

/*
 * A row is quantised once, so the bytes of the pool and those of the
 * last gather buffer are the same. Last layer; passes of one request, whose
 * buffer is still there at the end.
 */
static int
check_gather(struct run *r, const struct dcpk_plan *p, const struct part *parts,
    struct dcpd_err *err)
{
	unsigned char a[8192], b[8192];
	const struct seq *s = parts[0].s;
	uint32_t D = r->topo.dcp, last = s->cached + parts[0].rows;
	uint32_t layer = r->cfg.m.layers - 1;

	for (uint32_t rank = 0; rank < r->topo.world; rank++)
		for (uint32_t pos = 0; pos < last; pos++) {
			uint32_t owner = rank / D * D + pos % D;
			int64_t n, m;

			n = be->peek(r->ctx, DCPK_PEEK_GATHERED_ROW, layer,
			    rank, pos, a, sizeof(a));
			m = be->peek(r->ctx, DCPK_PEEK_POOL_ROW, layer, owner,
			    dcpk_pool_row(s->pages[pos / DCPK_PAGE], pos, D),
			    b, sizeof(b));
			if (n <= 0 || m <= 0)
				return dcpd_fail(err, -EIO, "peek of rank %u "
				    "position %u: gathered %" PRId64
				    ", pool %" PRId64, rank, pos, n, m);
			r->gathered++;
			if (n != m || memcmp(a, b, (size_t)n) != 0)
				r->gathered_differ++;
		}
	return 0;
}

/* Every DCP group holds the same rows and the same index keys. */
static int
check_replicas(struct run *r, const struct seq *s, struct dcpd_err *err)
{
	static const enum dcpk_peek what[2] = { DCPK_PEEK_POOL_ROW,
	    DCPK_PEEK_INDEX_ROW };
	unsigned char a[8192], b[8192];
	uint32_t D = r->topo.dcp;

	for (uint32_t l = 0; l < r->cfg.m.layers; l++)
		for (uint32_t w = 0; w < (r->cfg.m.full[l] ? 2u : 1u); w++)
			for (uint32_t pos = 0; pos < s->cached; pos++) {
				uint32_t row = dcpk_pool_row(
				    s->pages[pos / DCPK_PAGE], pos, D);
				int64_t n = be->peek(r->ctx, what[w], l,
				    pos % D, row, a, sizeof(a));

				if (n <= 0)
					return dcpd_fail(err, -EIO,
					    "peek pool: %" PRId64, n);
				for (uint32_t g = D; g < r->topo.world;
				    g += D) {
					be->peek(r->ctx, what[w], l,
					    g + pos % D, row, b, sizeof(b));
					r->replicas++;
					if (memcmp(a, b, (size_t)n) != 0)
						r->replicas_differ++;
				}
			}
	return 0;
}

static int
pass_run(struct run *r, enum dcpk_pass pass, struct part *parts, uint32_t n,
    struct dcpd_err *err)
{
	struct dcpk_plan *p = plan_build(r, pass, parts, n);
	struct dcpk_result res = { .out = r->res, .top = r->res + r->max_rows,
	    .out_cap = r->max_rows, .top_cap = 2 * r->max_rows };
	double t = dcpd_now();
	int rc;

	rc = dcpd_forward(be, r->ctx, &r->cfg.m, p, &res, NULL, err);
	if (rc != 0)
		return rc;
	t = dcpd_now() - t;
	if (pass == DCPK_PREFILL) {
		r->prefill_s += t;
		r->prefill_rows += p->n_rows;
		r->prefill_passes++;
		json_array_append_new(r->prefill_ms, json_pack("[if]",
		    p->n_rows, t * 1e3));
	} else {
		r->decode_s += t;
		r->decode_rows += p->n_rows;
		r->decode_passes++;
		json_array_append_new(r->decode_ms, json_pack("[if]",
		    p->n_rows, t * 1e3));
	}
	rc = take_logits(r, p, parts, err);
	if (rc == 0 && r->f_select != NULL)
		rc = take_select(r, p, parts, err);
	if (rc == 0 && r->j.check_gather && pass == DCPK_PREFILL && n == 1)
		rc = check_gather(r, p, parts, err);
	for (uint32_t i = 0; i < n; i++) {
		struct seq *s = parts[i].s;

		s->cached += parts[i].rows;
		if (r->j.stretch != 0 && s->cached == s->prompt) {
			s->ids[r->j.stretch] = s->ids[s->prompt];
			s->cached = r->j.stretch;
			s->have = r->j.stretch + 1;
		}
	}
	for (uint32_t i = 0; rc == 0 && r->j.check_replicas && i < n; i++)
		if (parts[i].s->cached + 1 >= parts[i].s->target)
			rc = check_replicas(r, parts[i].s, err);
	return rc;
}

static int
steps(struct run *r, struct dcpd_err *err)
{
	struct part parts[MAX_BATCH];
	int rc = 0;

	for (fwd_admit(r); rc == 0 && r->n_active > 0; fwd_admit(r)) {
		uint32_t n = 0, budget = r->j.chunk;

		for (uint32_t a = 0; a < r->n_active && budget > 0; a++) {
			struct seq *s = r->active[a];
			uint32_t left = s->prompt - s->cached;

			if (s->cached >= s->prompt)
				continue;
			parts[n].s = s;
			parts[n].rows = left < budget ? left : budget;
			budget -= parts[n++].rows;
		}
		if (n > 0)
			rc = pass_run(r, DCPK_PREFILL, parts, n, err);
		n = 0;
		for (uint32_t a = 0; a < r->n_active; a++) {
			struct seq *s = r->active[a];
			uint32_t left = s->have - s->cached;

			if (s->cached < s->prompt || s->cached + 1 >= s->target)
				continue;
			if (left > r->j.decode_rows)
				left = r->j.decode_rows;
			if (s->cached + left >= s->target)
				left = s->target - 1 - s->cached;
			parts[n].s = s;
			parts[n++].rows = left;
		}
		if (rc == 0 && n > 0)
			rc = pass_run(r, DCPK_DECODE, parts, n, err);
		fwd_retire(r);
		if (rc == 0 && r->j.rehouse)
			rc = fwd_rehouse(r, be, err);
	}
	if (rc == 0 && r->next < r->n_seqs)
		rc = dcpd_fail(err, -ENOSPC, "prompt %u needs %u pages of %u",
		    r->next, r->seqs[r->next].n_pages, r->j.pages);
	return rc;
}

/* --- a whole job -------------------------------------------------------- */

static FILE *
out_open(const struct job *j, const char *ext)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s.%s", j->out, ext);
	f = fopen(path, "wb");
	if (f == NULL) {
		fprintf(stderr, "fwd: %s: %s\n", path, strerror(errno));
		exit(2);
	}
	return f;
}

/* A job with `keep` leaves its device to the next one that wants the same. */
static struct {
	struct dcpk_ctx *ctx;
	char *key;
} kept;

static void
kept_close(void)
{
	if (kept.ctx != NULL)
		be->close(kept.ctx);
	free(kept.key);
	kept.ctx = NULL;
	kept.key = NULL;
}

/* What two jobs must have in common: all but the requests themselves. */
static char *
kept_key(json_t *o)
{
	static const char *const own[] = { "prompts", "forced", "decode",
		"stretch", "out", "seed" };
	json_t *c = json_copy(o);
	char *key;

	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		json_object_del(c, own[i]);
	key = json_dumps(c, JSON_SORT_KEYS);
	json_decref(c);
	return key;
}

static int
device_open(struct run *r, struct dcpd_err *err)
{
	struct job *j = &r->j;
	struct dcpd_load_options load = { .format = j->dummy ? DCPD_LOAD_DUMMY :
	    DCPD_LOAD_AUTO, .seed = 1, .any_number = j->any_number };
	struct dcpk_setup su = { .model = r->cfg.m, .topo = r->topo,
	    .kv = j->kv, .idx = j->idx, .pages = j->pages,
	    .max_rows = j->batch * j->decode_rows, .max_prefill = j->chunk,
	    .max_reqs = j->batch, .max_ctx = j->max_ctx,
	    .threads = j->threads, .flags = j->flags,
	    .ranks_per_gpu = j->ranks_per_gpu, .comm = j->comm,
	    .wire = j->wire, .graph_rows = j->graph_rows,
	    .host_pages = j->rehouse ? j->pages : 0 };
	struct dcpk_err ke = { "" };
	int rc;

	if ((su.flags & DCPK_FP8_WEIGHTS) != 0 &&
	    strcmp(r->cfg.quant_method, "w4afp8") == 0)
		su.flags |= DCPK_INT4_WEIGHTS;
	/* The logits kept for a peek are those of max_rows samples. */
	if (j->all_logits && su.max_rows < j->chunk)
		su.max_rows = j->chunk;
	if (be->settle != NULL && (rc = be->settle(&su, &ke)) != 0)
		return dcpd_fail(err, rc, "settle: %s", ke.text);
	rc = be->open(&su, &r->ctx, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "open: %s", ke.text);
	rc = dcpd_weights_load(j->model, &r->cfg, &r->topo, be, r->ctx, &load,
	    err);
	if (rc != 0)
		return rc;
	rc = be->ready(r->ctx, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "ready: %s", ke.text);
	if (j->fill && (be->fill == NULL || be->fill(r->ctx, j->seed) != 0))
		return dcpd_fail(err, -EIO, "fill: %s has failed, or has none",
		    be->name);
	return 0;
}

static int
device_keep(struct run *r, json_t *o, struct dcpd_err *err)
{
	char *key;
	int rc;

	if (r->j.max_ctx > number(o, "max_ctx", 0) ||
	    r->j.pages > number(o, "pages", 0))
		return dcpd_fail(err, -EINVAL, "keep: say max_ctx and pages, "
		    "enough for every job");
	key = kept_key(o);
	if (kept.ctx != NULL && strcmp(key, kept.key) == 0) {
		r->ctx = kept.ctx;
		free(key);
		return 0;
	}
	kept_close();
	rc = device_open(r, err);
	if (rc != 0) {
		free(key);
		return rc;
	}
	kept.ctx = r->ctx;
	kept.key = key;
	return 0;
}

static int
job_run(struct run *r, json_t *o, struct dcpd_err *err)
{
	struct job *j = &r->j;
	struct dcpk_err ke = { "" };
	uint32_t rows, pages = 0;
	int rc;

	rc = job_read(o, j, err);
	if (rc == 0)
		rc = seqs_read(r, err);
	if (rc == 0)
		rc = dcpd_config_load(j->model, j->latent_eps_config, &r->cfg,
		    err);
	if (rc == 0)
		rc = dcpd_topology(&j->layout, &r->cfg.m, &r->topo, err);
	if (rc != 0)
		return rc;
	if (j->allowed != NULL) {
		json_t *v;
		size_t i;

		r->mask_words = (r->cfg.m.vocab + 31) / 32;
		r->mask = fwd_alloc(r->mask_words * sizeof(uint32_t));
		json_array_foreach(j->allowed, i, v) {
			uint32_t id = (uint32_t)json_integer_value(v);

			r->mask[id / 32 % r->mask_words] |= 1u << id % 32;
		}
	}
	if (j->pages == 0)
		j->pages = fwd_pages_wanted(r);
	fwd_pages_shuffle(r);
	rows = j->chunk > j->batch * j->decode_rows ? j->chunk :
	    j->batch * j->decode_rows;
	r->max_rows = rows;
	for (uint32_t i = 0; i < r->n_seqs; i++)
		pages += r->seqs[i].n_pages;
	r->plan = fwd_alloc(sizeof(struct dcpk_plan) + 8 + rows *
	    (sizeof(struct dcpk_row) + sizeof(struct dcpk_sample)) +
	    j->batch * sizeof(struct dcpk_req) + (pages + r->mask_words) *
	    sizeof(uint32_t));
	r->logits = fwd_alloc((size_t)rows * r->cfg.m.vocab * sizeof(float));
	r->res = fwd_alloc(3 * rows * sizeof(*r->res));
	if (j->out != NULL) {
		r->f_logits = out_open(j, "logits");
		if (j->select)
			r->f_select = out_open(j, "select");
	}
	if (truth(o, "keep")) {
		rc = device_keep(r, o, err);
	} else {
		kept_close();
		rc = device_open(r, err);
	}
	if (rc == 0)
		rc = steps(r, err);
	if (rc == 0 && be->check(r->ctx, &ke) != 0)
		rc = dcpd_fail(err, -EIO, "check: %s", ke.text);
	return rc;
}

static json_t *
answer(struct run *r)
{
	json_t *o = json_object(), *toks = json_array();

	for (uint32_t i = 0; i < r->n_seqs; i++) {
		json_t *t = json_array();

		for (uint32_t k = r->j.stretch ? r->j.stretch :
		    r->seqs[i].prompt; k < r->seqs[i].have; k++)
			json_array_append_new(t, json_integer(
			    r->seqs[i].ids[k]));
		json_array_append_new(toks, t);
	}
	json_object_set_new(o, "tokens", toks);
	json_object_set(o, "entries", r->entries);
	json_object_set(o, "gaps", r->gaps);
	json_object_set(o, "decode_ms", r->decode_ms);
	json_object_set(o, "prefill_ms", r->prefill_ms);
	json_object_update_new(o, json_pack("{sI sI sI sI}",
	    "gathered", (json_int_t)r->gathered,
	    "gathered_differ", (json_int_t)r->gathered_differ,
	    "replicas", (json_int_t)r->replicas,
	    "replicas_differ", (json_int_t)r->replicas_differ));
	json_object_update_new(o, json_pack("{si si sf sf sI sI sI sI}",
	    "pages", r->j.pages, "vocab", r->cfg.m.vocab,
	    "prefill_s", r->prefill_s, "decode_s", r->decode_s,
	    "prefill_rows", (json_int_t)r->prefill_rows,
	    "decode_rows", (json_int_t)r->decode_rows,
	    "prefill_passes", (json_int_t)r->prefill_passes,
	    "decode_passes", (json_int_t)r->decode_passes));
	return o;
}

/* {"encode": [text, ...], "model": DIR}: the ids, by the folder's tokenizer. */
static json_t *
encode(json_t *o, struct dcpd_err *err)
{
	const char *dir = json_string_value(json_object_get(o, "model"));
	json_t *texts = json_object_get(o, "encode"), *all = json_array(), *v;
	struct dcpd_tokenizer *tok = NULL;
	struct dcpd_ids ids = { 0 };
	size_t i;
	int rc;

	rc = dcpd_tokenizer_open(dir != NULL ? dir : ".", &tok, err);
	json_array_foreach(texts, i, v) {
		json_t *a = json_array();

		json_array_append_new(all, a);
		if (rc != 0)
			break;
		ids.n = 0;
		rc = dcpd_encode(tok, json_string_value(v),
		    json_string_length(v), 0, 1u << 20, &ids, err);
		for (size_t k = 0; rc == 0 && k < ids.n; k++)
			json_array_append_new(a, json_integer(ids.v[k]));
	}
	dcpd_ids_free(&ids);
	if (tok != NULL)
		dcpd_tokenizer_close(tok);
	if (rc == 0)
		return json_pack("{so}", "ids", all);
	json_decref(all);
	return NULL;
}

static void
run_free(struct run *r)
{
	if (r->ctx != NULL && r->ctx != kept.ctx)
		be->close(r->ctx);
	for (uint32_t i = 0; i < r->n_seqs; i++) {
		free(r->seqs[i].ids);
		free(r->seqs[i].pages);
	}
	if (r->f_logits != NULL)
		fclose(r->f_logits);
	if (r->f_select != NULL)
		fclose(r->f_select);
	free(r->seqs);
	free(r->free_pages);
	free(r->plan);
	free(r->mask);
	free(r->logits);
	free(r->res);
	json_decref(r->entries);
	json_decref(r->gaps);
	json_decref(r->decode_ms);
	json_decref(r->prefill_ms);
	dcpd_config_free(&r->cfg);
}

/* One line in, one answer out. */
static json_t *
serve(const char *line)
{
	struct run r = { .entries = json_array(), .gaps = json_array(),
	    .decode_ms = json_array(), .prefill_ms = json_array() };
	struct dcpd_err err = { 0 };
	json_t *o = json_loads(line, 0, NULL), *a = NULL;

	if (o == NULL)
		dcpd_fail(&err, -EINVAL, "the job is not JSON");
	else if (json_object_get(o, "encode") != NULL)
		a = encode(o, &err);
	else if (job_run(&r, o, &err) == 0)
		a = answer(&r);
	if (a == NULL)
		a = json_pack("{ss si}", "error", err.text, "code", err.code);
	run_free(&r);	/* files are closed before the answer is seen */
	json_decref(o);
	return a;
}

int
main(void)
{
	char *line = NULL;
	size_t cap = 0;

	dcpd_log_level(LOG_WARNING);
	device_load();
	while (getline(&line, &cap, stdin) > 0) {
		json_t *a = serve(line);

		json_dumpf(a, stdout, JSON_COMPACT);
		putchar('\n');
		fflush(stdout);
		json_decref(a);
	}
	free(line);
	kept_close();
	return 0;
}
