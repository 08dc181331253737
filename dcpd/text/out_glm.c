/*
 * GLM's output: reasoning up to </think>, content, and calls
 *
 *	<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
 *
 * The marks are single tokens, so text that merely spells them is text. What
 * a mark means depends on the state; one that means nothing there is text in
 * reasoning, content and values, and is ignored elsewhere.
 */
#include "config.h"

#include "dcpd/text/out.h"

static int
begin_call(struct dcpd_out *o)
{
	int rc = 0;

	if (o->state == ST_CONTENT)
		rc = out_content_end(o, true);
	o->name.n = 0;
	o->state = ST_NAME;
	return rc;
}

/* A call that was not closed ends where the next begins. */
static int
next_call(struct dcpd_out *o)
{
	int rc = out_call_end(o);

	return rc != 0 ? rc : begin_call(o);
}

static int
begin_key(struct dcpd_out *o)
{
	int rc = o->state == ST_NAME ? out_call_name(o) : 0;

	o->key.n = 0;
	o->state = ST_KEY;
	return rc;
}

static int
in_reasoning(struct dcpd_out *o, const struct out_tag *tag)
{
	switch (tag->mark) {
	case MARK_THINK:
		/* Some models repeat the one that ends the prompt. */
		return o->thought ? out_text(o, tag->raw, tag->n) : 0;
	case MARK_END_THINK:
		o->state = ST_CONTENT;
		return 0;
	case MARK_CALL:
		return begin_call(o);
	default:
		return out_text(o, tag->raw, tag->n);
	}
}

static int
in_content(struct dcpd_out *o, const struct out_tag *tag)
{
	int rc;

	switch (tag->mark) {
	case MARK_THINK:
		rc = out_content_end(o, false);
		o->state = ST_REASONING;
		return rc;
	case MARK_END_THINK:
		return 0;
	case MARK_CALL:
		return begin_call(o);
	default:
		return out_text(o, tag->raw, tag->n);
	}
}

/* In a call, but not in a value. */
static int
in_call(struct dcpd_out *o, const struct out_tag *tag)
{
	switch (tag->mark) {
	case MARK_KEY:
		return begin_key(o);
	case MARK_END_KEY:
		if (o->state == ST_KEY)
			o->state = ST_GAP;
		return 0;
	case MARK_VALUE:
		return o->state == ST_NAME ? 0 : out_value_begin(o);
	case MARK_CALL:
		return next_call(o);
	case MARK_END_CALL:
		return out_call_end(o);
	default:
		return 0;
	}
}

int
out_glm_mark(struct dcpd_out *o, const struct out_tag *tag)
{
	switch (o->state) {
	case ST_REASONING:
		return in_reasoning(o, tag);
	case ST_CONTENT:
		return in_content(o, tag);
	case ST_VALUE:
		if (tag->mark == MARK_END_VALUE)
			return out_value_end(o);
		if (tag->mark == MARK_END_CALL)
			return out_call_end(o);
		return out_text(o, tag->raw, tag->n);
	default:
		return in_call(o, tag);
	}
}
