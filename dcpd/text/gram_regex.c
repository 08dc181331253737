/*
 * "pattern" of a schema (ECMA 262): what is regular of it. The expression may
 * match anywhere in the string, so without ^ and $ anything may stand around.
 * Refused: references back, looking round, \b, \p, and ^ or $ that are not at
 * the edges of an alternative.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"
#include "dcpd/text/utf8.h"

#define MAX_RANGES 64u

struct ranges {
	struct gram_range v[MAX_RANGES];
	uint32_t n;
};

struct parse {
	const char *s, *at, *end;
	struct gram_nfa *a;
	struct dcpd_err *err;
	unsigned depth;
	bool full;			/* the last ranges had no room */
};

struct frag {			/* from in to out */
	uint32_t in, out;
};

static const struct gram_range any_char[] = { { 0, 0x10ffff } };
static const struct gram_range no_newline[] = {
	{ 0, 9 }, { 0xb, 0xc }, { 0xe, 0x2027 }, { 0x202a, 0x10ffff },
};

static int
bad(struct parse *p, const char *what)
{
	return dcpd_fail(p->err, -EINVAL, "pattern: %s at byte %d of "
	    "\"%.100s\"", what, (int)(p->at - p->s), p->s);
}

static int alternatives(struct parse *, bool top, struct frag *);

/* --- sets of characters ------------------------------------------------ */

static void
add(struct parse *p, struct ranges *r, uint32_t lo, uint32_t hi)
{
	if (r->n == MAX_RANGES)
		p->full = true;
	else
		r->v[r->n++] = (struct gram_range){ lo, hi };
}

static int
by_lo(const void *a, const void *b)
{
	const struct gram_range *x = a, *y = b;

	return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Ascending and disjoint. */
static void
tidy(struct ranges *r)
{
	uint32_t n = 0;

	qsort(r->v, r->n, sizeof *r->v, by_lo);
	for (uint32_t i = 0; i < r->n; i++) {
		if (n > 0 && r->v[i].lo <= r->v[n - 1].hi + 1) {
			if (r->v[i].hi > r->v[n - 1].hi)
				r->v[n - 1].hi = r->v[i].hi;
		} else {
			r->v[n++] = r->v[i];
		}
	}
	r->n = n;
}

static void
invert(struct parse *p, struct ranges *r)
{
	struct ranges out = { .n = 0 };
	uint32_t at = 0;

	tidy(r);
	for (uint32_t i = 0; i < r->n; i++) {
		if (r->v[i].lo > at)
			add(p, &out, at, r->v[i].lo - 1);
		at = r->v[i].hi + 1;
	}
	if (at <= 0x10ffff)
		add(p, &out, at, 0x10ffff);
	*r = out;
}

/* \d, \w, \s and their opposites; false: c is none of them. */
static bool
class_escape(struct parse *p, char c, struct ranges *r)
{
	static const struct gram_range space[] = {
		{ 9, 13 }, { 32, 32 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 },
		{ 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f },
		{ 0x205f, 0x205f }, { 0x3000, 0x3000 }, { 0xfeff, 0xfeff },
	};
	struct ranges own = { .n = 0 };
	char low = (char)(c | 0x20);

	if (low == 'd' || low == 'w')
		add(p, &own, '0', '9');
	if (low == 'w') {
		add(p, &own, 'A', 'Z');
		add(p, &own, '_', '_');
		add(p, &own, 'a', 'z');
	}
	if (low == 's')
		for (unsigned i = 0; i < sizeof space / sizeof *space; i++)
			add(p, &own, space[i].lo, space[i].hi);
	if (own.n == 0)
		return false;
	if (c != low)
		invert(p, &own);
	for (uint32_t i = 0; i < own.n; i++)
		add(p, r, own.v[i].lo, own.v[i].hi);
	return true;
}

static int
hex(struct parse *p, unsigned n, uint32_t *c)
{
	static const char digits[] = "0123456789abcdef";
	const char *d;

	*c = 0;
	for (; n > 0; n--, p->at++) {
		char x = p->at == p->end ? '\0' : *p->at;

		if (x >= 'A' && x <= 'F')
			x = (char)(x - 'A' + 'a');
		d = x == '\0' ? NULL : strchr(digits, x);
		if (d == NULL)
			return bad(p, "no hexadecimal digit");
		*c = *c * 16 + (uint32_t)(d - digits);
	}
	return 0;
}

/* Behind a backslash: one character. */
static int
char_escape(struct parse *p, uint32_t *c)
{
	static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
	const char *k;

	if (p->at == p->end)
		return bad(p, "nothing after the backslash");
	k = *p->at == '\0' ? NULL : strchr(from, *p->at);
	if (k != NULL) {
		*c = (uint8_t)to[k - from];
		p->at++;
		return 0;
	}
	if (*p->at == 'x' || *p->at == 'u') {
		p->at++;
		return hex(p, p->at[-1] == 'x' ? 2 : 4, c);
	}
	if ((*p->at >= '0' && *p->at <= '9') ||
	    ((*p->at | 0x20) >= 'a' && (*p->at | 0x20) <= 'z'))
		return bad(p, "an escape that is not supported");
	if ((uint8_t)*p->at >= 0x80)
		return bad(p, "an escape that is not supported");
	*c = (uint8_t)*p->at++;
	return 0;
}

static uint32_t
plain(struct parse *p)
{
	unsigned len;
	uint32_t c = dcpd_utf8_char(p->at, &len);

	p->at += len;
	return c;
}

/* One end of a range in [...]; *set: it was a class, in r. */
static int
member(struct parse *p, struct ranges *r, uint32_t *c, bool *set)
{
	*set = false;
	if (*p->at != '\\') {
		*c = plain(p);
		return 0;
	}
	p->at++;
	if (p->at < p->end && class_escape(p, *p->at, r)) {
		p->at++;
		*set = true;
		return 0;
	}
	if (p->at < p->end && *p->at == 'b') {
		p->at++;
		*c = '\b';
		return 0;
	}
	return char_escape(p, c);
}

/* Behind "[". */
static int
set_of(struct parse *p, struct ranges *r)
{
	bool negated = p->at < p->end && *p->at == '^', set;
	uint32_t lo, hi;
	int rc;

	p->at += negated;
	while (p->at < p->end && *p->at != ']') {
		rc = member(p, r, &lo, &set);
		if (rc != 0)
			return rc;
		if (set)
			continue;
		hi = lo;
		if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
			p->at++;
			rc = member(p, r, &hi, &set);
			if (rc != 0)
				return rc;
			if (set || hi < lo)
				return bad(p, "a range that goes backwards");
		}
		add(p, r, lo, hi);
	}
	if (p->at == p->end)
		return bad(p, "\"[\" is negated closed");
	p->at++;
	if (negated)
		invert(p, r);
	return 0;
}

/* --- expressions ------------------------------------------------------- */

static void
one_of(struct parse *p, struct ranges *r, struct frag *f)
{
	tidy(r);
	*f = (struct frag){ gram_state(p->a), gram_state(p->a) };
	gram_char(p->a, f->in, f->out, r->v, r->n);
}

static int
group(struct parse *p, struct frag *f)
{
	int rc;

	if (p->end - p->at >= 2 && p->at[0] == '?') {
		if (p->at[1] == ':')
			p->at += 2;
		else if (p->end - p->at >= 4 && p->at[1] == '<' &&
		    p->at[2] != '=' && p->at[2] != '!') {
			while (p->at < p->end && *p->at != '>')
				p->at++;
			p->at += p->at < p->end;
		} else {
			return bad(p, "looking ahead or behind is not "
			    "supported");
		}
	}
	if (++p->depth > GRAM_MAX_NEST)
		return bad(p, "groups nested too deep");
	rc = alternatives(p, false, f);
	p->depth--;
	if (rc != 0)
		return rc;
	if (p->at == p->end)
		return bad(p, "\"(\" is not closed");
	p->at++;
	return 0;
}

static int
atom(struct parse *p, struct frag *f)
{
	struct ranges r = { .n = 0 };
	uint32_t c;
	int rc = 0;

	switch (*p->at) {
	case '(':
		p->at++;
		return group(p, f);
	case '[':
		p->at++;
		rc = set_of(p, &r);
		break;
	case '.':
		p->at++;
		memcpy(r.v, no_newline, sizeof no_newline);
		r.n = sizeof no_newline / sizeof *no_newline;
		break;
	case '\\':
		p->at++;
		if (p->at < p->end && class_escape(p, *p->at, &r)) {
			p->at++;
			break;
		}
		rc = char_escape(p, &c);
		if (rc == 0)
			add(p, &r, c, c);
		break;
	case '*': case '+': case '?': case '{':
		return bad(p, "nothing to repeat");
	case '^': case '$':
		return bad(p, "^ and $ are supported at the edges of the "
		    "expression only");
	default:
		c = plain(p);
		add(p, &r, c, c);
	}
	if (rc == 0 && p->full)
		rc = bad(p, "a set of more than 64 ranges");
	if (rc == 0)
		one_of(p, &r, f);
	return rc;
}

static bool
number(struct parse *p, uint32_t *n)
{
	const char *from = p->at;

	*n = 0;
	while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && *n < 1000000)
		*n = *n * 10 + (uint32_t)(*p->at++ - '0');
	return p->at > from;
}

/* How often; max NONE: without bound. 0 or 1: there is a quantifier. */
static int
quantifier(struct parse *p, uint32_t *min, uint32_t *max)
{
	char c = p->at < p->end ? *p->at : '\0';

	if (c != '*' && c != '+' && c != '?' && c != '{')
		return 0;
	p->at++;
	*min = c == '+';
	*max = c == '?' ? 1 : GRAM_NONE;
	if (c == '{') {
		if (!number(p, min))
			return bad(p, "no number after \"{\"");
		*max = *min;
		if (p->at < p->end && *p->at == ',') {
			p->at++;
			if (!number(p, max))
				*max = GRAM_NONE;
		}
		if (p->at == p->end || *p->at != '}')
			return bad(p, "\"{\" is not closed");
		p->at++;
		if (*min > GRAM_MAX_REPEAT ||
		    (*max != GRAM_NONE && *max > GRAM_MAX_REPEAT))
			return bad(p, "more than 1000 repetitions");
		if (*max < *min)
			return bad(p, "{m,n} with m above n");
	}
	/* Greedy or not, the same strings match. */
	if (p->at < p->end && *p->at == '?')
		p->at++;
	return 1;
}

/* An atom as often as its quantifier says: it is read again each time. */
static int
repeated(struct parse *p, struct frag *f)
{
	const char *from = p->at, *behind;
	uint32_t min = 1, max = 1, end;
	struct frag one;
	int rc;

	rc = atom(p, &one);
	if (rc != 0)
		return rc;
	rc = quantifier(p, &min, &max);
	if (rc <= 0) {
		*f = one;
		return rc;
	}
	behind = p->at;
	*f = (struct frag){ gram_state(p->a), gram_state(p->a) };
	end = f->in;
	for (uint32_t i = 0; i < min || (max != GRAM_NONE && i < max) ||
	    (max == GRAM_NONE && i == min); i++) {
		if (i > 0) {
			p->at = from;
			rc = atom(p, &one);
			if (rc != 0)
				return rc;
		}
		if (i >= min)
			gram_eps(p->a, end, f->out);
		gram_eps(p->a, end, one.in);
		if (max == GRAM_NONE && i >= min)
			gram_eps(p->a, one.out, end);
		else
			end = one.out;
		if (p->a->rc != 0)
			break;
	}
	gram_eps(p->a, end, f->out);
	p->at = behind;
	return 0;
}

static void
anything(struct gram_nfa *a, uint32_t at)
{
	gram_char(a, at, at, any_char, 1);
}

/* Up to "|", ")" or the end. */
static int
sequence(struct parse *p, bool top, struct frag *f)
{
	uint32_t at = gram_state(p->a);
	struct frag one;
	int rc;

	f->in = at;
	if (top && p->at < p->end && *p->at == '^')
		p->at++;
	else if (top)
		anything(p->a, at);
	while (p->at < p->end && *p->at != '|' && *p->at != ')') {
		if (top && *p->at == '$' && (p->at + 1 == p->end ||
		    p->at[1] == '|')) {
			p->at++;
			f->out = at;
			return 0;
		}
		rc = repeated(p, &one);
		if (rc != 0)
			return rc;
		gram_eps(p->a, at, one.in);
		at = one.out;
	}
	if (top) {
		uint32_t rest = gram_state(p->a);

		gram_eps(p->a, at, rest);
		anything(p->a, rest);
		at = rest;
	}
	f->out = at;
	return 0;
}

static int
alternatives(struct parse *p, bool top, struct frag *f)
{
	struct frag one;
	int rc;

	*f = (struct frag){ gram_state(p->a), gram_state(p->a) };
	for (;;) {
		rc = sequence(p, top, &one);
		if (rc != 0)
			return rc;
		gram_eps(p->a, f->in, one.in);
		gram_eps(p->a, one.out, f->out);
		if (p->at == p->end || *p->at != '|')
			break;
		p->at++;
	}
	if (top && p->at < p->end)
		return bad(p, "\")\" without \"(\"");
	return 0;
}

int
gram_regex(const char *regex, struct gram_dfa **out, struct dcpd_err *err)
{
	struct gram_nfa a = { 0 };
	struct parse p = { .s = regex, .at = regex,
	    .end = regex + strlen(regex), .a = &a, .err = err };
	uint32_t start = gram_state(&a), accept = gram_state(&a), close;
	struct frag f;
	int rc;

	rc = alternatives(&p, true, &f);
	if (rc == 0) {
		gram_edge(&a, start, f.in, '"', '"');
		close = gram_state(&a);
		gram_eps(&a, f.out, close);
		if (a.rc == 0)
			a.chr[close] = 1;
		gram_edge(&a, close, accept, '"', '"');
		rc = gram_dfa(&a, start, accept, out);
		if (rc == -E2BIG)
			dcpd_fail(err, -EINVAL, "pattern: \"%.100s\" needs "
			    "more than %u states: make it simpler", regex,
			    GRAM_MAX_DFA);
		else if (rc == -EDOM)
			dcpd_fail(err, -EINVAL, "pattern: \"%.100s\" matches "
			    "no string that can be written", regex);
		else if (rc != 0)
			dcpd_fail(err, rc, "pattern: %s", strerror(-rc));
		rc = rc == -E2BIG || rc == -EDOM ? -EINVAL : rc;
	}
	gram_nfa_free(&a);
	return rc;
}
