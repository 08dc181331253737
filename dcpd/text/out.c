/*
 * The way out: tokens of one request into channels of text. One incremental
 * core serves streaming and whole answers alike, so how the tokens arrive
 * cannot change the result.
 *
 * Held back is only what may still turn out to be something else: the bytes
 * of a begun character, the beginning of a mark (where marks are no tokens),
 * the beginning of a stop string, white space that may precede a tool call.
 *
 * An object belongs to one request and is used by one thread at a time.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "dcpd/text/out.h"
#include "dcpd/text/utf8.h"

#define OUT_MAGIC 0x6f757431u

static const char *const mark_text[N_TOKEN_MARKS] = {
	[MARK_THINK] = "<think>", [MARK_END_THINK] = "</think>",
	[MARK_CALL] = "<tool_call>", [MARK_END_CALL] = "</tool_call>",
	[MARK_KEY] = "<arg_key>", [MARK_END_KEY] = "</arg_key>",
	[MARK_VALUE] = "<arg_value>", [MARK_END_VALUE] = "</arg_value>",
};

/* --- channels --------------------------------------------------------- */

static int
out_flush(struct dcpd_out *o)
{
	size_t n = o->held.n;

	o->held.n = o->early = 0;
	return out_emit(o, DCP_CH_CONTENT, o->held.v, n);
}

int
out_emit(struct dcpd_out *o, uint32_t channel, const char *s, size_t n)
{
	bool tool = channel == DCP_CH_TOOL_NAME || channel == DCP_CH_TOOL_ARGS;
	int rc;

	if (n == 0)
		return 0;
	/* Something else follows: held content is no stop string any more. */
	if (channel != DCP_CH_CONTENT && o->held.n > 0) {
		rc = out_flush(o);
		if (rc != 0)
			return rc;
	}
	return o->fn(o->arg, channel, tool ? o->calls - 1 : 0, s, n);
}

/* Longest end of buf that is a beginning of s, but not all of s. */
static size_t
overlap(const struct dcpd_buf *buf, const char *s, size_t len)
{
	size_t n = len - 1 < buf->n ? len - 1 : buf->n;

	for (; n > 0; n--)
		if (memcmp(buf->v + buf->n - n, s, n) == 0)
			break;
	return n;
}

/* Where in held content a stop string first is that ends behind what is too
 * early for it; NULL: nowhere. */
static const char *
find_stop(const struct dcpd_out *o, const char *s, size_t len)
{
	size_t from = o->early < len ? 0 : o->early - len + 1;

	return memmem(o->held.v + from, o->held.n - from, s, len);
}

/*
 * Content after the white-space stage: look for stop strings. The answer ends
 * with the first character that completes one; if several end there, with
 * the longest. So the result does not depend on how the text is cut, but for
 * min_tokens: its last token's text is too early, the next one's is not.
 */
static int
through_stops(struct dcpd_out *o, const char *s, size_t n, size_t early)
{
	size_t at = SIZE_MAX, end = SIZE_MAX, keep = 0, k;
	const char *hit;
	uint32_t i;
	int rc;

	if (o->n_stop == 0)
		return out_emit(o, DCP_CH_CONTENT, s, n);
	if (early > 0)
		o->early = o->held.n + early;
	dcpd_buf_add(&o->held, s, n);
	if (o->held.failed)
		return -ENOMEM;
	if (o->held.n == 0)
		return 0;
	for (i = 0; i < o->n_stop; i++) {
		hit = find_stop(o, o->stop[i], o->stop_len[i]);
		if (hit == NULL) {
			k = overlap(&o->held, o->stop[i], o->stop_len[i]);
			keep = k > keep ? k : keep;
			continue;
		}
		k = (size_t)(hit - o->held.v);
		if (k + o->stop_len[i] < end ||
		    (k + o->stop_len[i] == end && k < at)) {
			at = k;
			end = k + o->stop_len[i];
			o->stopped_by = i;
		}
	}
	o->stopped = at != SIZE_MAX;
	n = o->stopped ? at : o->held.n - keep;
	o->early -= n < o->early ? n : o->early;
	rc = out_emit(o, DCP_CH_CONTENT, o->held.v, n);
	dcpd_buf_drop(&o->held, o->stopped ? o->held.n : n);
	return rc != 0 ? rc : o->stopped;
}

/* White space at the end of buf that must wait: see out_content. */
static size_t
waiting_space(const struct dcpd_out *o)
{
	const struct dcpd_buf *b = &o->space;
	size_t n = 0;

	if (o->parser == DCPD_PARSE_DSV32)
		while (n < 2 && n < b->n && b->v[b->n - 1 - n] == '\n')
			n++;
	return n;
}

/*
 * Two newlines before DeepSeek's calls belong to the markup, and white space
 * between calls or after the last to nobody. They wait for what follows.
 */
int
out_content(struct dcpd_out *o, const char *s, size_t n)
{
	bool blank = true, early = o->early_now;
	size_t wait, i;
	int rc;

	if (o->parser == DCPD_PARSE_RAW)
		return through_stops(o, s, n, early ? n : 0);
	dcpd_buf_add(&o->space, s, n);
	if (o->space.failed)
		return -ENOMEM;
	if (early)
		o->space_early = o->space.n;
	if (o->after_call) {
		for (i = 0; blank && i < n; i++)
			blank = isspace((unsigned char)s[i]);
		if (blank)
			return 0;
		o->after_call = false;
	}
	wait = waiting_space(o);
	n = o->space.n - wait;
	i = n < o->space_early ? n : o->space_early;
	rc = through_stops(o, o->space.v, n, i);
	dcpd_buf_drop(&o->space, n);
	o->space_early -= i;
	return rc;
}

int
out_content_end(struct dcpd_out *o, bool call_follows)
{
	int rc = 0;

	if (!call_follows && !o->after_call)
		rc = through_stops(o, o->space.v, o->space.n, o->space_early);
	o->space.n = o->space_early = 0;
	o->after_call |= call_follows;
	return rc;
}

/* --- states ----------------------------------------------------------- */

int
out_text(struct dcpd_out *o, const char *s, size_t n)
{
	size_t i;

	if (n == 0)
		return 0;
	switch (o->state) {
	case ST_REASONING:
		for (i = 0; !o->thought && i < n; i++)
			o->thought = !isspace((unsigned char)s[i]);
		return out_emit(o, DCP_CH_REASONING, s, n);
	case ST_CONTENT:
		return out_content(o, s, n);
	case ST_NAME:
		dcpd_buf_add(&o->name, s, n);
		return o->name.failed ? -ENOMEM : 0;
	case ST_KEY:
		dcpd_buf_add(&o->key, s, n);
		return o->key.failed ? -ENOMEM : 0;
	case ST_VALUE:
		return out_value_text(o, s, n);
	case ST_GAP:
	case ST_SECTION:
		return out_dsml_text(o, s, n);
	}
	return 0;
}

static int
on_mark(struct dcpd_out *o, const struct out_tag *tag)
{
	return o->parser == DCPD_PARSE_GLM ? out_glm_mark(o, tag) :
	    out_dsml_mark(o, tag);
}

/* --- marks in the text ------------------------------------------------ */

/* A mark at s, which begins with '<'; as out_dsml_tag. */
static int
tag_at(struct dcpd_out *o, const char *s, size_t n, struct out_tag *tag)
{
	bool maybe = false;
	size_t i, len;
	int m;

	for (i = 0; i < N_TOKEN_MARKS; i++) {
		if (!o->text_mark[i])
			continue;
		len = strlen(mark_text[i]);
		if (memcmp(s, mark_text[i], n < len ? n : len) != 0)
			continue;
		if (n >= len) {
			tag->mark = (enum out_mark)i;
			return (int)len;
		}
		maybe = true;
	}
	m = o->parser == DCPD_PARSE_DSV32 ? out_dsml_tag(s, n, tag) : -1;
	return m == -1 && maybe ? 0 : m;
}

/* .scan from `from` to `to`, which may have waited since early tokens. */
static int
scan_text(struct dcpd_out *o, size_t from, size_t to)
{
	size_t mid = dcpd_min64(o->scan_early, to);
	int rc = 0;

	if (from < mid) {
		o->early_now = true;
		rc = out_text(o, o->scan.v + from, mid - from);
		from = mid;
	}
	o->early_now = false;
	return rc != 0 ? rc : out_text(o, o->scan.v + from, to - from);
}

/* Divide .scan into text and marks, as far as can be told. */
static int
scan(struct dcpd_out *o, bool end)
{
	size_t from = 0, at = 0;
	int rc = 0, len;
	const char *p;

	while (rc == 0 && at < o->scan.n) {
		struct out_tag tag = { 0 };

		p = memchr(o->scan.v + at, '<', o->scan.n - at);
		if (p == NULL)
			break;
		at = (size_t)(p - o->scan.v);
		len = tag_at(o, p, o->scan.n - at, &tag);
		if (len < 0 || (len == 0 && end)) {
			at++;
			continue;
		}
		rc = scan_text(o, from, at);
		from = at;
		if (len == 0 || rc != 0)
			goto out;
		tag.raw = p;
		tag.n = (size_t)len;
		o->early_now = at + tag.n <= o->scan_early;
		rc = on_mark(o, &tag);
		at = from = at + (size_t)len;
	}
	if (rc == 0) {
		rc = scan_text(o, from, o->scan.n);
		from = o->scan.n;
	}
out:
	o->scan_early -= dcpd_min64(from, o->scan_early);
	dcpd_buf_drop(&o->scan, from);
	return rc;
}

/* Whole characters. */
static int
characters(struct dcpd_out *o, const char *s, size_t n)
{
	o->early_now = o->pushed <= o->min_tokens;
	if (!o->scans)
		return out_text(o, s, n);
	dcpd_buf_add(&o->scan, s, n);
	if (o->early_now)
		o->scan_early = o->scan.n;
	return o->scan.failed ? -ENOMEM : scan(o, false);
}

/* --- bytes ------------------------------------------------------------ */

static int
bytes(struct dcpd_out *o, const char *s, size_t n)
{
	struct dcpd_buf text = { 0 };
	size_t at = 0;
	int w, rc;

	dcpd_buf_add(&o->tail, s, n);
	if (o->tail.failed)
		return -ENOMEM;
	while (at < o->tail.n) {
		w = dcpd_utf8_step(o->tail.v + at, o->tail.n - at);
		if (w == 0)
			break;
		if (w > 0)
			dcpd_buf_add(&text, o->tail.v + at, (size_t)w);
		else
			dcpd_buf_str(&text, DCPD_UTF8_BAD);
		at += (size_t)abs(w);
	}
	dcpd_buf_drop(&o->tail, at);
	rc = text.failed ? -ENOMEM : characters(o, text.v, text.n);
	dcpd_buf_free(&text);
	return rc;
}

/* No more bytes of this text: a begun character is a broken one. */
static int
end_text(struct dcpd_out *o)
{
	bool broken = o->tail.n > 0;
	int rc = 0;

	o->tail.n = 0;
	if (broken)
		rc = characters(o, DCPD_UTF8_BAD, strlen(DCPD_UTF8_BAD));
	if (rc == 0 && o->scan.n > 0)
		rc = scan(o, true);
	return rc;
}

/* --- entry ------------------------------------------------------------ */

static int
push_token(struct dcpd_out *o, uint32_t id)
{
	struct out_tag tag = { 0 };
	bool special;
	int i, rc;

	if (dcpd_token_bytes(o->t, id, &tag.raw, &tag.n, &special) < 0)
		return 0;		/* a hole in the vocabulary: no text */
	for (i = 0; i < N_TOKEN_MARKS && o->mark_id[i] != id; i++)
		;
	if (i < N_TOKEN_MARKS) {
		tag.mark = (enum out_mark)i;
		rc = end_text(o);
		o->early_now = o->pushed <= o->min_tokens;
		return rc != 0 ? rc : on_mark(o, &tag);
	}
	if (!special || o->special)
		return bytes(o, tag.raw, tag.n);
	/* An end of turn within a call: the call is as whole as it gets. */
	if (o->state <= ST_CONTENT)
		return 0;
	rc = end_text(o);
	return rc != 0 || o->state <= ST_CONTENT ? rc : out_call_end(o);
}

int
dcpd_out_push(struct dcpd_out *o, uint32_t id, dcpd_out_fn *fn, void *arg)
{
	bool before;
	int rc;

	DCPD_CHECK(o, OUT_MAGIC);
	if (o->stopped)
		return 1;
	before = o->state == ST_REASONING;
	o->fn = fn;
	o->arg = arg;
	o->pushed++;
	rc = push_token(o, id);
	if (rc == 0 && o->enough) {
		o->stopped = true;
		rc = 1;
	}
	o->reasoning_tokens += before && o->state == ST_REASONING;
	return rc;
}

int
dcpd_out_finish(struct dcpd_out *o, dcpd_out_fn *fn, void *arg)
{
	int rc;

	DCPD_CHECK(o, OUT_MAGIC);
	if (o->stopped)
		return 0;
	o->fn = fn;
	o->arg = arg;
	rc = end_text(o);
	if (rc == 0 && o->state == ST_CONTENT)
		rc = out_content_end(o, false);
	if (rc == 0)
		rc = out_flush(o);
	return rc < 0 ? rc : 0;
}

static int
copy_stops(struct dcpd_out *o, const struct dcpd_out_config *c)
{
	uint32_t i;

	if (c->n_stop == 0)
		return 0;
	o->stop = calloc(c->n_stop, sizeof *o->stop);
	o->stop_len = calloc(c->n_stop, sizeof *o->stop_len);
	if (o->stop == NULL || o->stop_len == NULL)
		return -ENOMEM;
	for (i = 0; i < c->n_stop; i++) {
		if (c->stop[i][0] == '\0')
			return -EINVAL;
		o->stop[i] = strdup(c->stop[i]);
		if (o->stop[i] == NULL)
			return -ENOMEM;
		o->stop_len[i] = strlen(c->stop[i]);
		o->n_stop++;
	}
	return 0;
}

/* Marks that the parser knows: as tokens, or else in the text. */
static void
find_marks(struct dcpd_out *o)
{
	int i, n = o->parser == DCPD_PARSE_GLM ? N_TOKEN_MARKS :
	    o->parser == DCPD_PARSE_DSV32 ? MARK_END_THINK + 1 : 0;
	int64_t id;

	for (i = 0; i < N_TOKEN_MARKS; i++) {
		id = i < n ? dcpd_token_id(o->t, mark_text[i]) : -1;
		o->mark_id[i] = id < 0 ? UINT32_MAX : (uint32_t)id;
		o->text_mark[i] = i < n && id < 0;
		o->scans |= o->text_mark[i];
	}
	o->scans |= o->parser == DCPD_PARSE_DSV32;
}

int
dcpd_out_new(const struct dcpd_tokenizer *t, const struct dcpd_out_config *c,
    struct dcpd_out **out)
{
	struct dcpd_out *o = calloc(1, sizeof *o);
	int rc;

	if (o == NULL)
		return -ENOMEM;
	o->magic = OUT_MAGIC;
	o->t = t;
	o->special = c->special;
	o->parser = c->special ? DCPD_PARSE_RAW : c->parser;
	o->tools = c->tools;
	o->one_call = c->one_call;
	o->state = o->parser != DCPD_PARSE_RAW && c->thinking ?
	    ST_REASONING : ST_CONTENT;
	o->min_tokens = c->min_tokens;
	find_marks(o);
	rc = copy_stops(o, c);
	if (rc < 0) {
		dcpd_out_free(o);
		return rc;
	}
	*out = o;
	return 0;
}

uint32_t
dcpd_out_reasoning_tokens(const struct dcpd_out *o)
{
	DCPD_CHECK(o, OUT_MAGIC);
	return o->reasoning_tokens;
}

uint32_t
dcpd_out_stop(const struct dcpd_out *o)
{
	return o->stopped && !o->enough ? o->stopped_by + 1 : 0;
}

uint32_t
dcpd_out_calls(const struct dcpd_out *o)
{
	DCPD_CHECK(o, OUT_MAGIC);
	return o->calls;
}

void
dcpd_out_free(struct dcpd_out *o)
{
	uint32_t i;

	if (o == NULL)
		return;
	DCPD_CHECK(o, OUT_MAGIC);
	for (i = 0; i < o->n_stop; i++)
		free(o->stop[i]);
	free(o->stop);
	free(o->stop_len);
	dcpd_buf_free(&o->tail);
	dcpd_buf_free(&o->scan);
	dcpd_buf_free(&o->space);
	dcpd_buf_free(&o->held);
	dcpd_buf_free(&o->name);
	dcpd_buf_free(&o->key);
	dcpd_buf_free(&o->value);
	o->magic = 0;
	free(o);
}
