/*
 * DeepSeek-V3.2's output: reasoning up to </think>, content, and calls in a
 * markup that is spelled out in ordinary tokens ("|" is U+FF5C):
 *
 *	<|DSML|function_calls>
 *	<|DSML|invoke name="f">
 *	<|DSML|parameter name="k" string="true|false">v</|DSML|parameter>
 *	</|DSML|invoke>
 *	</|DSML|function_calls>
 *
 * Read leniently: a bare invoke is a call, what is not closed ends where the
 * next thing begins, a malformed sibling does not spoil the others.
 */
#include "config.h"

#include <ctype.h>

#include "dcpd/text/out.h"

#define DSML "\uff5cDSML\uff5c"
#define MAX_TAG 1024u		/* bytes; longer is no tag */

static const struct {
	const char *text;	/* after "<" DSML or "</" DSML */
	enum out_mark mark;
	bool end, attributes;
} tags[] = {
	{ "function_calls>", MARK_CALLS, false, false },
	{ "function_calls>", MARK_END_CALLS, true, false },
	{ "invoke ", MARK_INVOKE, false, true },
	{ "invoke>", MARK_END_INVOKE, true, false },
	{ "parameter ", MARK_PARAM, false, true },
	{ "parameter>", MARK_END_PARAM, true, false },
};

/* Does s begin with lit (1), might it yet (0), or not (-1)? */
static int
begins(const char *s, size_t n, const char *lit)
{
	size_t len = strlen(lit);

	if (n >= len)
		return memcmp(s, lit, len) == 0 ? 1 : -1;
	return memcmp(s, lit, n) == 0 ? 0 : -1;
}

/* key="..." somewhere in the attributes */
static bool
attribute(const char *s, size_t n, const char *key, const char **v, size_t *vn)
{
	size_t len = strlen(key);
	const char *p, *end = s + n, *q;

	for (p = s; (p = memmem(p, (size_t)(end - p), key, len)) != NULL; p++) {
		if ((p != s && !isspace((unsigned char)p[-1])) ||
		    end - p < (ptrdiff_t)len + 2 || p[len] != '=' ||
		    p[len + 1] != '"')
			continue;
		*v = p + len + 2;
		q = memchr(*v, '"', (size_t)(end - *v));
		if (q == NULL)
			return false;
		*vn = (size_t)(q - *v);
		return true;
	}
	return false;
}

/* Attributes up to the '>' that is not in quotes; as out_dsml_tag. */
static int
attributes(const char *s, size_t n, size_t from, struct out_tag *tag)
{
	bool quoted = false;
	const char *v;
	size_t i, vn;

	for (i = from; i < n && i < MAX_TAG; i++) {
		if (s[i] == '\n')
			return -1;
		if (s[i] == '"')
			quoted = !quoted;
		if (s[i] != '>' || quoted)
			continue;
		if (!attribute(s + from, i - from, "name", &tag->name,
		    &tag->name_n))
			return -1;
		tag->string = !attribute(s + from, i - from, "string", &v,
		    &vn) || (vn == 4 && memcmp(v, "true", 4) == 0);
		return (int)i + 1;
	}
	return i == MAX_TAG ? -1 : 0;
}

int
out_dsml_tag(const char *s, size_t n, struct out_tag *tag)
{
	bool end = n > 1 && s[1] == '/', maybe = false;
	const char *intro = end ? "</" DSML : "<" DSML;
	size_t len = strlen(intro), i;
	int m = begins(s, n, intro);

	if (m <= 0)
		return m;
	for (i = 0; i < sizeof tags / sizeof *tags; i++) {
		if (tags[i].end != end)
			continue;
		m = begins(s + len, n - len, tags[i].text);
		maybe |= m == 0;
		if (m <= 0)
			continue;
		tag->mark = tags[i].mark;
		len += strlen(tags[i].text);
		return tags[i].attributes ? attributes(s, n, len, tag) :
		    (int)len;
	}
	return maybe ? 0 : -1;
}

/* Text where only tags are expected. */
int
out_dsml_text(struct dcpd_out *o, const char *s, size_t n)
{
	size_t i = 0;

	while (i < n && isspace((unsigned char)s[i]))
		i++;
	if (i == n || o->state == ST_GAP)
		return 0;
	/* The section is over, though nothing said so. */
	o->state = ST_CONTENT;
	return out_content(o, s + i, n - i);
}

static int
leave_text(struct dcpd_out *o)
{
	int rc = 0;

	if (o->state == ST_CONTENT)
		rc = out_content_end(o, true);
	else if (o->state == ST_VALUE || o->state == ST_GAP)
		rc = out_call_end(o);
	o->state = ST_SECTION;
	return rc;
}

static int
invoke(struct dcpd_out *o, const struct out_tag *tag)
{
	int rc = leave_text(o);

	if (rc != 0)
		return rc;
	o->name.n = 0;
	dcpd_buf_add(&o->name, tag->name, tag->name_n);
	rc = out_call_name(o);
	o->state = ST_GAP;
	return rc;
}

static int
parameter(struct dcpd_out *o, const struct out_tag *tag)
{
	int rc = o->state == ST_VALUE ? out_value_end(o) : 0;

	if (rc != 0)
		return rc;
	o->key.n = 0;
	dcpd_buf_add(&o->key, tag->name, tag->name_n);
	o->types = 0;
	return out_value_begin_as(o, tag->string);
}

static int
end_calls(struct dcpd_out *o)
{
	int rc = o->state == ST_SECTION ? 0 : out_call_end(o);

	o->state = ST_CONTENT;
	return rc;
}

int
out_dsml_mark(struct dcpd_out *o, const struct out_tag *tag)
{
	bool in_text = o->state == ST_REASONING || o->state == ST_CONTENT;
	bool in_call = o->state == ST_GAP || o->state == ST_VALUE;
	int rc;

	switch (tag->mark) {
	case MARK_THINK:
		if (o->state == ST_REASONING && !o->thought)
			return 0;
		if (o->state != ST_CONTENT)
			return out_text(o, tag->raw, tag->n);
		rc = out_content_end(o, false);
		o->state = ST_REASONING;
		return rc;
	case MARK_END_THINK:
		if (!in_text)
			return out_text(o, tag->raw, tag->n);
		o->state = ST_CONTENT;
		return 0;
	case MARK_CALLS:
		return leave_text(o);
	case MARK_INVOKE:
		return invoke(o, tag);
	case MARK_PARAM:
		return in_call ? parameter(o, tag) :
		    out_text(o, tag->raw, tag->n);
	case MARK_END_PARAM:
		return o->state == ST_VALUE ? out_value_end(o) : 0;
	case MARK_END_INVOKE:
		rc = in_call ? out_call_end(o) : 0;
		if (in_call)
			o->state = ST_SECTION;
		return rc;
	case MARK_END_CALLS:
		return in_text ? 0 : end_calls(o);
	default:
		return out_text(o, tag->raw, tag->n);
	}
}
