/* Token ids back into bytes and text. Pure functions, any thread. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/text/tok.h"
#include "dcpd/text/utf8.h"

int64_t
dcpd_token_id(const struct dcpd_tokenizer *t, const char *content)
{
	size_t len = strlen(content);
	uint32_t i;

	DCPD_CHECK(t, TOK_MAGIC);
	for (i = 0; i < t->n_added; i++)
		if (t->added[i].len == len &&
		    memcmp(t->added[i].content, content, len) == 0)
			return t->added[i].id;
	i = tok_word(t, content, len);
	return i == TOK_NONE ? -1 : (int64_t)i;
}

int
dcpd_token_bytes(const struct dcpd_tokenizer *t, uint32_t id,
    const char **bytes, size_t *len, bool *special)
{
	DCPD_CHECK(t, TOK_MAGIC);
	if (id >= t->limit || !t->tok[id].used)
		return -ENOENT;
	*bytes = t->arena.v == NULL ? "" : t->arena.v + t->tok[id].off;
	*len = t->tok[id].len;
	*special = t->tok[id].special;
	return 0;
}

uint32_t
dcpd_token_limit(const struct dcpd_tokenizer *t)
{
	DCPD_CHECK(t, TOK_MAGIC);
	return t->limit;
}

char *
dcpd_decode(const struct dcpd_tokenizer *t, const uint32_t *ids, size_t n,
    bool skip_special, size_t *len)
{
	struct dcpd_buf raw = { 0 }, text = { 0 };
	size_t i, at, nb;
	const char *b;
	bool special;
	char *s;
	int w;

	for (i = 0; i < n; i++)
		if (dcpd_token_bytes(t, ids[i], &b, &nb, &special) == 0 &&
		    !(special && skip_special))
			dcpd_buf_add(&raw, b, nb);
	for (at = 0; at < raw.n; at += (size_t)w) {
		w = dcpd_utf8_step(raw.v + at, raw.n - at);
		if (w > 0) {
			dcpd_buf_add(&text, raw.v + at, (size_t)w);
			continue;
		}
		/* Broken, or cut off by the end: one mark for the part. */
		dcpd_buf_str(&text, DCPD_UTF8_BAD);
		w = w < 0 ? -w : (int)(raw.n - at);
	}
	text.failed |= raw.failed;
	dcpd_buf_free(&raw);
	at = text.n;
	s = dcpd_buf_take(&text);
	if (s != NULL && len != NULL)
		*len = at;
	return s;
}
