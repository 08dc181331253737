/*
 * The memory plan as a table for people and as JSON for programs. Pure, any
 * thread.
 */
#include "config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/kv/memplan.h"

static const struct column {
	const char *title, *key;
	size_t off;
} columns[] = {
#define COLUMN(title, field) \
	{ title, #field, offsetof(struct dcpk_bytes, field) }
	COLUMN("weights", weights),
	COLUMN("attention", weights_attn),	/* replicated under CP */
	COLUMN("replicated", weights_rep),
	COLUMN("MTP", weights_mtp),
	COLUMN("KV rows", rows),
	COLUMN("index", index),
	COLUMN("workspace", workspace),
	COLUMN("graphs", graphs),
	COLUMN("NCCL", comm),
#undef COLUMN
};
#define COLUMNS (sizeof columns / sizeof *columns)

static uint64_t
field(const struct dcpk_bytes *b, size_t i)
{
	uint64_t v;

	memcpy(&v, (const char *)b + columns[i].off, sizeof v);
	return v;
}

static uint64_t
total(const struct dcpk_bytes *b)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < COLUMNS; i++)
		sum += field(b, i);
	return sum;
}

/* One rank's share of a token, rounded up. */
static uint64_t
token_bytes(uint64_t page_bytes)
{
	return dcpd_div_up(page_bytes, DCPD_PAGE_TOKENS);
}

/* Tokens that a GiB of a rank's pools holds, at D / shrink. */
static uint64_t
tokens_of_gib(const struct dcpd_memplan *p, uint32_t shrink)
{
	return (1ull << 30) / ((p->page_bytes_rows + p->page_bytes_index) *
	    shrink) * DCPD_PAGE_TOKENS;
}

/*
 * The least memory that each GPU must have: of one whose size is not known,
 * with two pages where no bytes are given for them. 0: it is no GPU, or known.
 */
static uint64_t
gpu_least(const struct dcpd_memplan_in *in, const struct dcpd_memplan *p)
{
	uint64_t pages = p->pages != 0 ? 0 :
	    2 * (p->page_bytes_rows + p->page_bytes_index), most = 0;
	double fraction = in->kv_bytes_per_rank != 0 ? 1 : in->mem_fraction;
	uint32_t r, ranks = in->ranks_per_gpu > 1 ? in->ranks_per_gpu : 1;

	if (strcmp(in->device, "cuda") != 0 || in->device_bytes != 0 ||
	    !(fraction > 0))
		return 0;
	for (r = 0; r < p->world; r++)
		if (total(&p->rank[r]) > most)
			most = total(&p->rank[r]);
	return (uint64_t)((double)((most + pages) * ranks) / fraction);
}

static void
put_gpu(FILE *f, const struct dcpd_memplan_in *in,
    const struct dcpd_memplan *p)
{
	uint64_t least = gpu_least(in, p);
	char a[32];

	if (least == 0)
		return;
	fprintf(f, "memory: each GPU must have %s at least",
	    dcpd_bytes(a, sizeof a, least));
	if (in->kv_bytes_per_rank != 0)
		fprintf(f, ", and what CUDA takes for itself\n");
	else
		fprintf(f, ", at --mem-fraction-static %g; what is above it "
		    "holds context\n", in->mem_fraction);
}

static const char *
format_name(enum dcpk_kv kv)
{
	static const char *const names[] = {
		[DCPK_KV_F32] = "f32", [DCPK_KV_BF16] = "bf16",
		[DCPK_KV_FP8] = "fp8_e4m3",
	};

	return names[kv];
}

/* --- text ---------------------------------------------------------------- */

/* 1234567 -> "1,234,567" */
static const char *
thousands(char *buf, size_t cap, uint64_t v)
{
	char digits[24];
	size_t n = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, v);
	size_t i, at = 0;

	for (i = 0; i < n && at + 2 < cap; i++) {
		if (i > 0 && (n - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = digits[i];
	}
	buf[at] = '\0';
	return buf;
}

static void
put_line(FILE *f, uint32_t r0, uint32_t r1, const char *what,
    const struct dcpk_bytes *b)
{
	char ranks[24], bytes[32];
	size_t i;

	if (r0 == r1)
		snprintf(ranks, sizeof ranks, "%u", r0);
	else
		snprintf(ranks, sizeof ranks, "%u-%u", r0, r1);
	fprintf(f, "%-6s %-8s", ranks, what);
	for (i = 0; i < COLUMNS; i++)
		fprintf(f, " %11s", field(b, i) == 0 ? "-" :
		    dcpd_bytes(bytes, sizeof bytes, field(b, i)));
	fprintf(f, " %11s\n", dcpd_bytes(bytes, sizeof bytes, total(b)));
}

static bool
same(const struct dcpk_bytes *b, uint32_t x, uint32_t y)
{
	return b == NULL || memcmp(&b[x], &b[y], sizeof *b) == 0;
}

static void
put_ranks(FILE *f, const struct dcpd_memplan *p,
    const struct dcpk_bytes *actual)
{
	uint32_t r0, r1;
	size_t i;

	fprintf(f, "%-6s %-8s", "ranks", "bytes");
	for (i = 0; i < COLUMNS; i++)
		fprintf(f, " %11s", columns[i].title);
	fprintf(f, " %11s\n", "total");
	for (r0 = 0; r0 < p->world; r0 = r1 + 1) {
		for (r1 = r0; r1 + 1 < p->world && same(p->rank, r0, r1 + 1) &&
		    same(actual, r0, r1 + 1); r1++)
			;
		put_line(f, r0, r1, "planned", &p->rank[r0]);
		if (actual != NULL)
			put_line(f, r0, r1, "actual", &actual[r0]);
	}
}

static void
put_capacity(FILE *f, const struct dcpd_memplan_in *in,
    const struct dcpd_memplan *p, const struct dcpk_bytes *actual)
{
	char a[32], b[32], c[32], d[32];

	fprintf(f, "a token takes %s + %s bytes of each rank (KV + index)\n",
	    thousands(a, sizeof a, token_bytes(p->page_bytes_rows)),
	    thousands(b, sizeof b, token_bytes(p->page_bytes_index)));
	if (p->pages == 0 && p->misfit[0] != '\0') {
		fprintf(f, "tokens: none\n");
	} else if (p->pages == 0) {
		fprintf(f, "tokens: each GiB of a rank holds %s; under TP "
		    "(--dcp-size 1) %s; give --kv-bytes-per-rank for a sum\n",
		    thousands(a, sizeof a, tokens_of_gib(p, 1)),
		    thousands(b, sizeof b, tokens_of_gib(p, p->D)));
	} else {
		fprintf(f, "tokens: %s in %s pages of %u; under TP (--dcp-size "
		    "1) the same bytes hold %s\n",
		    thousands(a, sizeof a, p->tokens),
		    thousands(b, sizeof b, p->pages), DCPD_PAGE_TOKENS,
		    thousands(c, sizeof c, p->tokens_tp));
	}
	if (p->host_pages > 0)
		fprintf(f, "host memory: %s hold %s pages more, %s tokens, "
		    "that left the pool%s%s\n",
		    dcpd_bytes(a, sizeof a, p->host_bytes),
		    thousands(b, sizeof b, p->host_pages),
		    thousands(c, sizeof c, (uint64_t)p->host_pages *
		    DCPD_PAGE_TOKENS), actual != NULL ? "; actual " : "",
		    actual != NULL ? dcpd_bytes(d, sizeof d, actual[0].host) :
		    "");
	if (p->workspace_estimated)
		fprintf(f, "workspace is an estimate: the device's module "
		    "counts it when it is loaded\n");
	if (p->misfit[0] != '\0')
		fprintf(f, "DOES NOT FIT: %s\n", p->misfit);
}

char *
dcpd_memplan_text(const struct dcpd_memplan_in *in,
    const struct dcpd_memplan *p, const struct dcpk_bytes *actual)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (f == NULL)
		return NULL;
	fprintf(f, "%s (%s) on %s: --tp %u --attn-cp-size %u --dcp-size %u "
	    "--kv-cache-dtype %s, index %s\n", in->cfg->name,
	    in->cfg->model_type, in->device, in->layout.tp, in->layout.cp,
	    in->layout.dcp, format_name(in->kv), format_name(in->idx));
	put_ranks(f, p, actual);
	put_capacity(f, in, p, actual);
	put_gpu(f, in, p);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* --- JSON ---------------------------------------------------------------- */

static json_t *
bytes_json(const struct dcpk_bytes *b)
{
	json_t *o = json_object();
	size_t i;

	for (i = 0; i < COLUMNS; i++)
		json_object_set_new(o, columns[i].key,
		    json_integer((json_int_t)field(b, i)));
	json_object_set_new(o, "total", json_integer((json_int_t)total(b)));
	return o;
}

json_t *
dcpd_memplan_json(const struct dcpd_memplan_in *in,
    const struct dcpd_memplan *p, const struct dcpk_bytes *actual)
{
	json_t *ranks = json_array(), *o;
	uint32_t r;

	for (r = 0; r < p->world; r++) {
		json_t *line = json_pack("{s:i, s:o}", "rank", (int)r,
		    "planned", bytes_json(&p->rank[r]));

		if (actual != NULL)
			json_object_set_new(line, "actual",
			    bytes_json(&actual[r]));
		json_array_append_new(ranks, line);
	}
	o = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:o}",
	    "model", in->cfg->name, "model_type", in->cfg->model_type,
	    "device", in->device, "tp", (int)in->layout.tp, "attn_cp_size",
	    (int)in->layout.cp, "dcp_size", (int)in->layout.dcp,
	    "kv_cache_dtype", format_name(in->kv), "index_dtype",
	    format_name(in->idx), "ranks", ranks);
	if (o == NULL)
		return NULL;
	json_object_set_new(o, "kv_budget_per_rank",
	    json_integer((json_int_t)p->budget));
	json_object_set_new(o, "page_bytes_rows",
	    json_integer((json_int_t)p->page_bytes_rows));
	json_object_set_new(o, "page_bytes_index",
	    json_integer((json_int_t)p->page_bytes_index));
	json_object_set_new(o, "token_bytes_per_rank",
	    json_integer((json_int_t)token_bytes(p->page_bytes_rows +
	    p->page_bytes_index)));
	json_object_set_new(o, "pages", json_integer(p->pages));
	json_object_set_new(o, "tokens", json_integer((json_int_t)p->tokens));
	json_object_set_new(o, "host_cache_pages",
	    json_integer(p->host_pages));
	json_object_set_new(o, "host_cache_bytes",
	    json_integer((json_int_t)p->host_bytes));
	if (actual != NULL)
		json_object_set_new(o, "host_cache_actual",
		    json_integer((json_int_t)actual[0].host));
	json_object_set_new(o, "tokens_tp",
	    json_integer((json_int_t)p->tokens_tp));
	json_object_set_new(o, "tokens_per_gib",
	    json_integer((json_int_t)tokens_of_gib(p, 1)));
	json_object_set_new(o, "tokens_per_gib_tp",
	    json_integer((json_int_t)tokens_of_gib(p, p->D)));
	json_object_set_new(o, "gpu_bytes_least", gpu_least(in, p) == 0 ?
	    json_null() : json_integer((json_int_t)gpu_least(in, p)));
	json_object_set_new(o, "workspace_estimated",
	    json_boolean(p->workspace_estimated));
	json_object_set_new(o, "misfit", p->misfit[0] == '\0' ? json_null() :
	    json_string(p->misfit));
	return o;
}
