/*
 * Numbers as automata. Without bounds: up to 18 digits before the point, 15
 * behind it, an exponent of up to two digits, so that every reader takes them.
 * Within bounds: no exponent, and 15 digits in all for numbers that are no
 * integers, so that rounding to a double cannot lead across a bound.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"

#define INT_DIGITS 18u
#define REAL_DIGITS 15u
#define INT_LIMIT 999999999999999999ll		/* 18 nines */

/* n digits at most, one at least; returns the last state of each length. */
static void
digits(struct gram_nfa *a, uint32_t from, uint32_t to, unsigned n)
{
	for (; n > 0; n--) {
		uint32_t next = gram_state(a);

		gram_edge(a, from, next, '0', '9');
		gram_eps(a, next, to);
		from = next;
	}
}

static void
any_integer(struct gram_nfa *a, uint32_t from, uint32_t to)
{
	uint32_t sign = gram_state(a), first = gram_state(a);

	gram_edge(a, from, sign, '-', '-');
	gram_eps(a, from, sign);
	gram_edge(a, sign, to, '0', '0');
	gram_edge(a, sign, first, '1', '9');
	gram_eps(a, first, to);
	digits(a, first, to, INT_DIGITS - 1);
}

static void
any_number(struct gram_nfa *a, uint32_t from, uint32_t to)
{
	uint32_t whole = gram_state(a), point = gram_state(a);
	uint32_t fraction = gram_state(a), e = gram_state(a);
	uint32_t sign = gram_state(a);

	any_integer(a, from, whole);
	gram_eps(a, whole, fraction);
	gram_edge(a, whole, point, '.', '.');
	digits(a, point, fraction, REAL_DIGITS);
	gram_eps(a, fraction, to);
	gram_edge(a, fraction, e, 'e', 'e');
	gram_edge(a, fraction, e, 'E', 'E');
	gram_edge(a, e, sign, '+', '+');
	gram_edge(a, e, sign, '-', '-');
	gram_eps(a, e, sign);
	digits(a, sign, to, 2);
}

/* --- within bounds ----------------------------------------------------- */

/* A bound that is not negative, as digits. */
struct decimal {
	char whole[24], frac[24];	/* frac: no zeros at its end */
	bool open;			/* the bound itself is out */
};

/* Numbers of `len` digits before the point, from lo to hi; either may be NULL
   (open): lo has at most, hi at least so many digits. */
struct within {
	struct gram_nfa *a;
	const struct decimal *lo, *hi;
	unsigned len, max_frac;		/* digits */
	uint32_t to;
	uint32_t at[2][2][64];		/* states, 0: none, by tightness */
};

static char
digit_at(const struct decimal *d, unsigned len, unsigned i)
{
	if (i < len)
		return d->whole[i];
	i -= len;
	return i < strlen(d->frac) ? d->frac[i] : '0';
}

/* i digits were read; tl, th: so far they are those of lo, hi. */
static uint32_t
state_of(struct within *w, unsigned i, bool tl, bool th)
{
	uint32_t *s = &w->at[tl][th][i];

	if (*s == 0)
		*s = gram_state(w->a);
	return *s;
}

/* May the number end after i digits? */
static bool
may_end(const struct within *w, unsigned i, bool tl, bool th)
{
	if (i < w->len)
		return false;
	if (tl && (w->lo->open || i - w->len < strlen(w->lo->frac)))
		return false;
	/* Nothing or zeros follow: that is hi only if all of its digits were
	   read, and less otherwise. */
	return !(th && w->hi->open && i - w->len >= strlen(w->hi->frac));
}

static void
next_digit(struct within *w, uint32_t from, unsigned i, bool tl, bool th)
{
	char lo = tl ? digit_at(w->lo, w->len, i) : '0';
	char hi = th ? digit_at(w->hi, w->len, i) : '9';
	char d;

	/* No zero in front, but for the number that is one digit long. */
	for (d = i == 0 && w->len > 1 && lo < '1' ? '1' : lo; d <= hi; d++)
		gram_edge(w->a, from, state_of(w, i + 1, tl && d == lo,
		    th && d == hi), (uint8_t)d, (uint8_t)d);
}

static void
walk(struct within *w, uint32_t from, bool tl, bool th)
{
	unsigned end = w->len + w->max_frac;

	gram_eps(w->a, from, state_of(w, 0, tl, th));
	for (unsigned i = 0; i <= end; i++)
		for (unsigned k = 0; k < 4; k++) {
			uint32_t s = w->at[k >> 1][k & 1][i], point;

			if (s == 0)
				continue;
			if (may_end(w, i, k >> 1, k & 1))
				gram_eps(w->a, s, w->to);
			if (i == end)
				continue;
			if (i == w->len) {
				point = gram_state(w->a);
				gram_edge(w->a, s, point, '.', '.');
				s = point;
			}
			next_digit(w, s, i, k >> 1, k & 1);
		}
}

/* Every number from lo to hi, neither negative; hi NULL: no bound. */
static void
positive(struct gram_nfa *a, uint32_t from, uint32_t to, bool integer,
    const struct decimal *lo, const struct decimal *hi)
{
	unsigned all = integer ? INT_DIGITS : REAL_DIGITS;
	unsigned l = (unsigned)strlen(lo->whole);
	unsigned h = hi == NULL ? all : (unsigned)strlen(hi->whole);
	struct within *w;

	w = malloc(sizeof *w);
	if (w == NULL) {
		a->rc = -ENOMEM;
		return;
	}
	for (unsigned n = l; n <= h && n <= all; n++) {
		*w = (struct within){ .a = a, .lo = lo, .hi = hi, .len = n,
		    .max_frac = integer ? 0 : REAL_DIGITS - n, .to = to };
		walk(w, from, n == l, hi != NULL && n == h);
	}
	free(w);
}

/* |v| as digits; false: it has more than can be said exactly. */
static bool
decimal_of(double v, bool open, struct decimal *d)
{
	char buf[64], *point;
	int places = 0;

	v = fabs(v);
	if (!(v < 1e15))
		return false;
	do
		snprintf(buf, sizeof buf, "%.*f", places++, v);
	while (strtod(buf, NULL) != v && places <= (int)REAL_DIGITS);
	if (strtod(buf, NULL) != v)
		return false;
	point = strchr(buf, '.');
	if (point != NULL)
		*point = '\0';
	snprintf(d->whole, sizeof d->whole, "%.20s", buf);
	snprintf(d->frac, sizeof d->frac, "%.20s", point != NULL ? point + 1 :
	    "");
	d->open = open;
	return strlen(d->whole) + strlen(d->frac) <= REAL_DIGITS;
}

struct span {				/* bounds as numbers */
	double lo, hi;			/* -inf, inf: none */
	bool lo_open, hi_open;
};

static int
tighten(struct span *s, const struct gram_bounds *b, struct dcpd_err *err)
{
	const json_t *v[4] = { b->min, b->xmin, b->max, b->xmax };
	static const char *const name[4] = { "minimum", "exclusiveMinimum",
		"maximum", "exclusiveMaximum" };

	*s = (struct span){ .lo = -INFINITY, .hi = INFINITY };
	for (unsigned i = 0; i < 4; i++) {
		double x;

		if (v[i] == NULL)
			continue;
		if (!json_is_number(v[i]))
			return dcpd_fail(err, -EINVAL, "%s: want a number",
			    name[i]);
		x = json_number_value(v[i]);
		if (i < 2 && (x > s->lo || (x == s->lo && i == 1))) {
			s->lo = x;
			s->lo_open = i == 1;
		}
		if (i >= 2 && (x < s->hi || (x == s->hi && i == 3))) {
			s->hi = x;
			s->hi_open = i == 3;
		}
	}
	return 0;
}

static int
whole_of(int64_t v, struct decimal *d)
{
	*d = (struct decimal){ .open = false };
	snprintf(d->whole, sizeof d->whole, "%lld",
	    (long long)(v < 0 ? -v : v));
	return 0;
}

static int
bounded_integer(struct gram_nfa *a, uint32_t from, uint32_t to,
    const struct span *s, struct dcpd_err *err)
{
	double l = s->lo_open ? floor(s->lo) + 1 : ceil(s->lo);
	double h = s->hi_open ? ceil(s->hi) - 1 : floor(s->hi);
	int64_t lo, hi;
	struct decimal dl, dh;
	uint32_t sign;

	if ((isfinite(l) && fabs(l) > 9007199254740992.) ||
	    (isfinite(h) && fabs(h) > 9007199254740992.))
		return dcpd_fail(err, -EINVAL, "bounds of an integer above "
		    "2^53 are not supported");
	lo = isfinite(l) ? (int64_t)l : -INT_LIMIT;
	hi = isfinite(h) ? (int64_t)h : INT_LIMIT;
	if (lo > hi)
		return dcpd_fail(err, -EINVAL, "no integer is within minimum "
		    "and maximum");
	if (hi >= 0) {
		whole_of(lo > 0 ? lo : 0, &dl);
		whole_of(hi, &dh);
		positive(a, from, to, true, &dl, &dh);
	}
	if (lo < 0) {
		sign = gram_state(a);
		gram_edge(a, from, sign, '-', '-');
		whole_of(hi < 0 ? hi : -1, &dl);
		whole_of(lo, &dh);
		positive(a, sign, to, true, &dl, &dh);
	}
	return 0;
}

static int
bounded_number(struct gram_nfa *a, uint32_t from, uint32_t to,
    const struct span *s, struct dcpd_err *err)
{
	struct decimal lo = { .whole = "0" }, hi;
	bool has_lo = isfinite(s->lo), has_hi = isfinite(s->hi);
	uint32_t sign;

	if ((has_lo && !decimal_of(s->lo, s->lo_open, &lo)) ||
	    (has_hi && !decimal_of(s->hi, s->hi_open, &hi)))
		return dcpd_fail(err, -EINVAL, "bounds of more than 15 digits "
		    "are not supported");
	if (!has_hi || s->hi >= 0) {
		struct decimal zero = { .whole = "0", .open = has_lo &&
		    s->lo == 0 && s->lo_open };

		positive(a, from, to, false, has_lo && s->lo > 0 ? &lo : &zero,
		    has_hi ? &hi : NULL);
	}
	if (!has_lo || s->lo < 0) {
		struct decimal zero = { .whole = "0", .open = true };

		sign = gram_state(a);
		gram_edge(a, from, sign, '-', '-');
		positive(a, sign, to, false, has_hi && s->hi < 0 ? &hi : &zero,
		    has_lo ? &lo : NULL);
	}
	return 0;
}

int
gram_number(bool integer, const struct gram_bounds *b, struct gram_dfa **out,
    struct dcpd_err *err)
{
	struct gram_nfa a = { 0 };
	uint32_t from, to;
	struct span s;
	int rc;

	rc = tighten(&s, b, err);
	if (rc != 0)
		return rc;
	gram_state(&a);			/* 0 stands for "none" in walk() */
	from = gram_state(&a);
	to = gram_state(&a);
	if (!isfinite(s.lo) && !isfinite(s.hi))
		(integer ? any_integer : any_number)(&a, from, to);
	else
		rc = (integer ? bounded_integer : bounded_number)(&a, from, to,
		    &s, err);
	if (rc == 0) {
		rc = gram_dfa(&a, from, to, out);
		if (rc == -EDOM)
			rc = dcpd_fail(err, -EINVAL, "no number of at most 15 "
			    "digits is within minimum and maximum");
		else if (rc != 0)
			dcpd_fail(err, rc, "numbers: %s", strerror(-rc));
	}
	gram_nfa_free(&a);
	return rc;
}
