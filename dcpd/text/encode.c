/*
 * Text into token ids. The steps and their seams are those of the reference
 * implementation (huggingface/tokenizers):
 *
 *  1. added tokens are cut out of the raw text, leftmost-longest, first those
 *     not "normalized", then in what is left the others;
 *  2. each Split expression is applied to every piece that the one before it
 *     produced; matches and the gaps between them become pieces, and an
 *     expression sees nothing outside its piece (look-ahead included);
 *  3. each piece is merged pair by pair, lowest rank first, leftmost first.
 *
 * Runs on pool threads. All memory of a call is its own.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/text/tok.h"
#include "dcpd/text/utf8.h"

/* Steps that one match may take; a backtracking run of 8 MiB needs fewer. */
#define MATCH_LIMIT 50000000u
#define JIT_STACK_MAX (1u << 20)	/* bytes */

struct symbol {
	uint32_t id;			/* NONE: merged into its left one */
	int32_t prev, next;		/* -1: none */
};

struct merge {				/* a pair waiting to be merged */
	uint32_t rank, at, id;		/* at: its left symbol */
};

struct encoder {
	const struct dcpd_tokenizer *t;
	const char *text;		/* the whole, for offsets in errors */
	size_t len;
	const struct tok_span *plain;
	size_t n_plain;
	size_t max;			/* ids that out may hold */
	struct dcpd_ids *out;
	struct dcpd_err *err;
	pcre2_match_context *mctx;
	pcre2_jit_stack *stack;
	pcre2_match_data *md;
	struct symbol *sym;
	struct merge *heap;
	size_t n_heap, sym_cap;
};

static int
no_memory(struct encoder *e)
{
	return dcpd_fail(e->err, -ENOMEM, "out of memory");
}

static int
emit(struct encoder *e, uint32_t id)
{
	if (e->out->n >= e->max)
		return dcpd_fail(e->err, -E2BIG,
		    "the text has more than %zu tokens", e->max);
	return dcpd_ids_push(e->out, id) < 0 ? no_memory(e) : 0;
}

/* --- merging ---------------------------------------------------------- */

static bool
before(const struct merge *a, const struct merge *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void
heap_push(struct encoder *e, struct merge m)
{
	size_t i = e->n_heap++, up;

	for (; i > 0; i = up) {
		up = (i - 1) / 2;
		if (!before(&m, &e->heap[up]))
			break;
		e->heap[i] = e->heap[up];
	}
	e->heap[i] = m;
}

static struct merge
heap_pop(struct encoder *e)
{
	struct merge top = e->heap[0], last = e->heap[--e->n_heap];
	size_t i = 0, kid;

	for (; (kid = 2 * i + 1) < e->n_heap; i = kid) {
		if (kid + 1 < e->n_heap &&
		    before(&e->heap[kid + 1], &e->heap[kid]))
			kid++;
		if (!before(&e->heap[kid], &last))
			break;
		e->heap[i] = e->heap[kid];
	}
	e->heap[i] = last;
	return top;
}

/* The pair that begins at symbol `at`, if it can be merged, waits. */
static void
offer(struct encoder *e, int32_t at)
{
	const struct tok_merge *m;

	if (at < 0 || e->sym[at].next < 0)
		return;
	m = tok_merge_of(e->t, e->sym[at].id, e->sym[e->sym[at].next].id);
	if (m != NULL)
		heap_push(e, (struct merge){ m->rank, (uint32_t)at, m->id });
}

static void
merge_all(struct encoder *e)
{
	const struct tok_merge *m;
	struct symbol *l, *r;
	struct merge top;

	while (e->n_heap > 0) {
		top = heap_pop(e);
		l = &e->sym[top.at];
		if (l->id == TOK_NONE || l->next < 0)
			continue;
		/* Stale if either side has been merged away since. */
		r = &e->sym[l->next];
		m = tok_merge_of(e->t, l->id, r->id);
		if (m == NULL || m->id != top.id)
			continue;
		l->id = m->id;
		l->next = r->next;
		r->id = TOK_NONE;
		if (l->next >= 0)
			e->sym[l->next].prev = (int32_t)top.at;
		offer(e, l->prev);
		offer(e, (int32_t)top.at);
	}
}

static int
grow(struct encoder *e, size_t n)
{
	struct symbol *sym;
	struct merge *heap;
	size_t cap = e->sym_cap == 0 ? 256 : e->sym_cap;

	while (cap < n)
		cap *= 2;
	sym = reallocarray(e->sym, cap, sizeof *sym);
	if (sym == NULL)
		return no_memory(e);
	e->sym = sym;
	/* n - 1 pairs at first, two more for each of at most n - 1 merges. */
	heap = reallocarray(e->heap, 3 * cap, sizeof *heap);
	if (heap == NULL)
		return no_memory(e);
	e->heap = heap;
	e->sym_cap = cap;
	return 0;
}

static int
encode_word(struct encoder *e, const char *s, size_t len)
{
	uint32_t id;
	int32_t i, n = (int32_t)len;
	int rc;

	if (len > TOK_MAX_WORD)
		return dcpd_fail(e->err, -EINVAL, "%zu bytes without a break "
		    "at byte %zu; at most %u are taken as one word", len,
		    (size_t)(s - e->text), TOK_MAX_WORD);
	if (e->t->ignore_merges &&
	    (id = tok_word(e->t, s, len)) != TOK_NONE)
		return emit(e, id);
	if (len > e->sym_cap && (rc = grow(e, len)) < 0)
		return rc;
	for (i = 0; i < n; i++)
		e->sym[i] = (struct symbol){
			.id = e->t->byte_id[(unsigned char)s[i]],
			.prev = i - 1, .next = i + 1 < n ? i + 1 : -1,
		};
	for (i = 0; i + 1 < n; i++)
		offer(e, i);
	merge_all(e);
	for (i = 0; i >= 0; i = e->sym[i].next)
		if ((rc = emit(e, e->sym[i].id)) < 0)
			return rc;
	return 0;
}

/* --- splitting -------------------------------------------------------- */

static int
match_failed(struct encoder *e, const char *s, int code)
{
	PCRE2_UCHAR why[128];

	pcre2_get_error_message(code, why, sizeof why);
	return dcpd_fail(e->err, -EINVAL, "the text from byte %zu on is too "
	    "hard for the tokenizer's expression (%s)",
	    (size_t)(s - e->text), (const char *)why);
}

static int
split(struct encoder *e, unsigned level, const char *s, size_t len)
{
	size_t at = 0, from = 0, start, end;
	PCRE2_SIZE *ov = pcre2_get_ovector_pointer(e->md);
	int rc;

	if (len == 0)
		return 0;
	if (level == e->t->n_split)
		return encode_word(e, s, len);
	while (at < len) {
		rc = pcre2_match(e->t->split[level], (PCRE2_SPTR)s, len, at,
		    PCRE2_NO_UTF_CHECK, e->md, e->mctx);
		if (rc == PCRE2_ERROR_NOMATCH)
			break;
		if (rc < 0)
			return match_failed(e, s + at, rc);
		start = ov[0];
		end = ov[1];
		if (end <= start) {
			/* An empty match divides nothing: look further on. */
			unsigned w;

			if (start >= len)
				break;
			(void)dcpd_utf8_char(s + start, &w);
			at = start + w;
			continue;
		}
		rc = split(e, level + 1, s + from, start - from);
		if (rc == 0)
			rc = split(e, level + 1, s + start, end - start);
		if (rc < 0)
			return rc;
		at = from = end;
	}
	return split(e, level + 1, s + from, len - from);
}

/* --- added tokens ----------------------------------------------------- */

/* Longest added token of a trie that begins at s; -1 if none does. */
static int32_t
longest(const struct tok_trie *tr, const char *s, size_t len)
{
	uint32_t at = 0;
	int32_t best = -1;
	size_t i;

	for (i = 0; i < len; i++) {
		at = tr->v[at].child;
		while (at != 0 && tr->v[at].byte != (unsigned char)s[i])
			at = tr->v[at].sibling;
		if (at == 0)
			break;
		if (tr->v[at].added >= 0)
			best = tr->v[at].added;
	}
	return best;
}

static bool
is_word_char(struct encoder *e, const char *s)
{
	unsigned w;

	(void)dcpd_utf8_char(s, &w);
	return pcre2_match(e->t->word_char, (PCRE2_SPTR)s, w, 0,
	    PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, e->md, NULL) > 0;
}

static const char *
char_before(const char *s, const char *floor)
{
	do
		s--;
	while (s > floor && ((unsigned char)*s & 0xc0) == 0x80);
	return s;
}

/* Is [s + start, s + end) a word of its own within [s, s + len)? */
static bool
stands_alone(struct encoder *e, const char *s, size_t len, size_t start,
    size_t end)
{
	return (start == 0 || !is_word_char(e, char_before(s + start, s))) &&
	    (end == len || !is_word_char(e, s + end));
}

static size_t
strip_left(const char *s, size_t start, size_t floor)
{
	const char *p;
	unsigned w;

	while (start > floor) {
		p = char_before(s + start, s + floor);
		if (!dcpd_utf8_space(dcpd_utf8_char(p, &w)))
			break;
		start = (size_t)(p - s);
	}
	return start;
}

static size_t
strip_right(const char *s, size_t end, size_t len)
{
	unsigned w;

	while (end < len && dcpd_utf8_space(dcpd_utf8_char(s + end, &w)))
		end += w;
	return end;
}

/* Bytes from offset `at` of the text that no plain span touches. */
static size_t
room(struct encoder *e, size_t at, size_t limit)
{
	size_t lo = 0, hi = e->n_plain, mid;

	while (lo < hi) {		/* first span that ends after `at` */
		mid = lo + (hi - lo) / 2;
		if (e->plain[mid].end <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == e->n_plain || e->plain[lo].start >= limit)
		return limit - at;
	return e->plain[lo].start <= at ? 0 : e->plain[lo].start - at;
}

static int
cut_added(struct encoder *e, unsigned pass, const char *s, size_t len)
{
	const struct tok_trie *tr = &e->t->trie[pass];
	size_t i = 0, from = 0, base = (size_t)(s - e->text), start, end, n;
	const struct tok_added *a;
	int32_t hit;
	int rc;

	if (pass == 2)
		return split(e, 0, s, len);
	while (i < len) {
		if (!tr->first[(unsigned char)s[i]]) {
			i++;
			continue;
		}
		n = room(e, base + i, base + len);
		hit = longest(tr, s + i, n);
		if (hit < 0) {
			i++;
			continue;
		}
		a = &e->t->added[hit];
		start = i;
		end = i + a->len;
		i = end;
		if (a->single_word && !stands_alone(e, s, len, start, end))
			continue;
		if (a->lstrip)
			start = strip_left(s, start, from);
		if (a->rstrip)
			i = end = strip_right(s, end, len);
		rc = cut_added(e, pass + 1, s + from, start - from);
		if (rc == 0)
			rc = emit(e, a->id);
		if (rc < 0)
			return rc;
		from = end;
	}
	return cut_added(e, pass + 1, s + from, len - from);
}

/* --- entry ------------------------------------------------------------ */

static int
begin(struct encoder *e)
{
	e->md = pcre2_match_data_create(1, NULL);
	e->mctx = pcre2_match_context_create(NULL);
	e->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
	if (e->md == NULL || e->mctx == NULL || e->stack == NULL)
		return no_memory(e);
	pcre2_set_match_limit(e->mctx, MATCH_LIMIT);
	pcre2_set_heap_limit(e->mctx, 64 << 10);	/* KiB */
	pcre2_jit_stack_assign(e->mctx, NULL, e->stack);
	return 0;
}

int
tok_encode(const struct dcpd_tokenizer *t, const char *s, size_t len,
    const struct tok_span *plain, size_t n_plain, size_t max,
    struct dcpd_ids *out, struct dcpd_err *err)
{
	struct encoder e = {
		.t = t, .text = s, .len = len, .plain = plain,
		.n_plain = n_plain, .max = max, .out = out, .err = err,
	};
	size_t ok, n = out->n;
	int rc;

	DCPD_CHECK(t, TOK_MAGIC);
	ok = dcpd_utf8_valid(s, len);
	if (ok < len)
		return dcpd_fail(err, -EILSEQ, "not UTF-8 at byte %zu (0x%02x)",
		    ok, (unsigned char)s[ok]);
	if (max < SIZE_MAX - n)
		e.max = n + max;
	rc = begin(&e);
	if (rc == 0)
		rc = cut_added(&e, 0, s, len);
	if (rc < 0)
		out->n = n;
	free(e.heap);
	free(e.sym);
	pcre2_jit_stack_free(e.stack);
	pcre2_match_context_free(e.mctx);
	pcre2_match_data_free(e.md);
	return rc;
}

int
dcpd_encode(const struct dcpd_tokenizer *t, const char *s, size_t len,
    unsigned flags, size_t max, struct dcpd_ids *out, struct dcpd_err *err)
{
	struct tok_span all = { 0, len };

	return tok_encode(t, s, len, &all, flags & DCPD_PLAIN ? 1 : 0, max,
	    out, err);
}
