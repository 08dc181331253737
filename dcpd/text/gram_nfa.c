/*
 * Automata over bytes: edges are collected with choices, then made
 * deterministic by the subset construction, and whatever cannot lead to the
 * end any more is cut off. So that no text accepted so far is a dead end.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/text/gram.h"

/* --- building ---------------------------------------------------------- */

static int
room(void *v, uint32_t n, uint32_t *cap, size_t size)
{
	uint32_t c = *cap == 0 ? 64 : 2 * *cap;
	void **p = v, *more;

	if (n < *cap)
		return 0;
	more = realloc(*p, c * size);
	if (more == NULL)
		return -ENOMEM;
	*p = more;
	*cap = c;
	return 0;
}

uint32_t
gram_state(struct gram_nfa *a)
{
	if (a->rc == 0 && a->n >= GRAM_MAX_NFA)
		a->rc = -E2BIG;
	if (a->rc == 0)
		a->rc = room(&a->chr, a->n, &a->cap, sizeof *a->chr);
	if (a->rc != 0)
		return 0;
	a->chr[a->n] = 0;
	return a->n++;
}

static void
add_edge(struct gram_nfa *a, struct gram_edge e)
{
	if (a->rc == 0 && a->n_e >= 8 * GRAM_MAX_NFA)
		a->rc = -E2BIG;
	if (a->rc == 0)
		a->rc = room(&a->e, a->n_e, &a->cap_e, sizeof *a->e);
	if (a->rc == 0)
		a->e[a->n_e++] = e;
}

void
gram_edge(struct gram_nfa *a, uint32_t from, uint32_t to, uint8_t lo,
    uint8_t hi)
{
	add_edge(a, (struct gram_edge){ from, to, lo, hi, false });
}

void
gram_eps(struct gram_nfa *a, uint32_t from, uint32_t to)
{
	add_edge(a, (struct gram_edge){ .from = from, .to = to, .eps = true });
}

/* The bytes of lo..hi, which have the same number n of them. */
static void
utf8_same(struct gram_nfa *a, uint32_t from, uint32_t to, const uint8_t *lo,
    const uint8_t *hi, unsigned n)
{
	static const uint8_t least[3] = { 0x80, 0x80, 0x80 };
	static const uint8_t most[3] = { 0xbf, 0xbf, 0xbf };
	uint8_t first = lo[0], last = hi[0];
	uint32_t mid;

	if (n == 1) {
		gram_edge(a, from, to, first, last);
		return;
	}
	if (first == last) {
		mid = gram_state(a);
		gram_edge(a, from, mid, first, first);
		utf8_same(a, mid, to, lo + 1, hi + 1, n - 1);
		return;
	}
	if (memcmp(lo + 1, least, n - 1) != 0) {
		mid = gram_state(a);
		gram_edge(a, from, mid, first, first);
		utf8_same(a, mid, to, lo + 1, most, n - 1);
		first++;
	}
	if (memcmp(hi + 1, most, n - 1) != 0) {
		mid = gram_state(a);
		gram_edge(a, from, mid, last, last);
		utf8_same(a, mid, to, least, hi + 1, n - 1);
		last--;
	}
	if (first <= last) {
		mid = gram_state(a);
		gram_edge(a, from, mid, first, last);
		utf8_same(a, mid, to, least, most, n - 1);
	}
}

static unsigned
utf8_put(uint32_t c, uint8_t *b)
{
	if (c < 0x80) {
		b[0] = (uint8_t)c;
		return 1;
	}
	if (c < 0x800) {
		b[0] = (uint8_t)(0xc0 | c >> 6);
		b[1] = (uint8_t)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		b[0] = (uint8_t)(0xe0 | c >> 12);
		b[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
		b[2] = (uint8_t)(0x80 | (c & 0x3f));
		return 3;
	}
	b[0] = (uint8_t)(0xf0 | c >> 18);
	b[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
	b[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
	b[3] = (uint8_t)(0x80 | (c & 0x3f));
	return 4;
}

/* Characters that stand for themselves, in parts of one length, as UTF-8. */
static void
plain_char(struct gram_nfa *a, uint32_t from, uint32_t to, struct gram_range r)
{
	static const struct gram_range part[] = {
		{ 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0x7f },
		{ 0x80, 0x7ff }, { 0x800, 0xd7ff }, { 0xe000, 0xffff },
		{ 0x10000, 0x10ffff },
	};
	uint8_t lo[4], hi[4];

	for (unsigned i = 0; i < sizeof part / sizeof *part; i++) {
		uint32_t l = r.lo > part[i].lo ? r.lo : part[i].lo;
		uint32_t h = r.hi < part[i].hi ? r.hi : part[i].hi;

		if (l > h)
			continue;
		utf8_put(l, lo);
		utf8_same(a, from, to, lo, hi, utf8_put(h, hi));
	}
}

void
gram_char(struct gram_nfa *a, uint32_t from, uint32_t to,
    const struct gram_range *r, uint32_t n)
{
	static const char escaped[][2] = {
		{ '"', '"' }, { '\\', '\\' }, { '\b', 'b' }, { '\t', 't' },
		{ '\n', 'n' }, { '\f', 'f' }, { '\r', 'r' },
	};
	uint32_t esc = GRAM_NONE;

	if (a->rc == 0)
		a->chr[from] = 1;
	for (uint32_t i = 0; i < n; i++) {
		plain_char(a, from, to, r[i]);
		for (unsigned k = 0; k < sizeof escaped / 2; k++) {
			uint32_t c = (uint8_t)escaped[k][0];

			if (c < r[i].lo || c > r[i].hi)
				continue;
			if (esc == GRAM_NONE) {
				esc = gram_state(a);
				gram_edge(a, from, esc, '\\', '\\');
			}
			gram_edge(a, esc, to, (uint8_t)escaped[k][1],
			    (uint8_t)escaped[k][1]);
		}
	}
}

void
gram_nfa_free(struct gram_nfa *a)
{
	free(a->e);
	free(a->chr);
	memset(a, 0, sizeof *a);
}

/* --- the subset construction ------------------------------------------- */

struct set {			/* states of the NFA, ascending */
	uint32_t *v, n;
};

struct subset {
	const struct gram_nfa *a;
	uint32_t *first;	/* [n + 1] edges of a state, in .e */
	struct gram_edge *e;
	struct gram_dfa *d;
	struct set *set;	/* [cap] of each state of d */
	uint32_t n_set, cap;
	uint32_t *hash;		/* [mask + 1] 1 + state */
	uint32_t mask;
	uint8_t *in;		/* [n] is in list */
	uint32_t *list, n_list;	/* the set being made */
	uint64_t work;		/* steps so far, bounded */
};

/* Bytes that no edge tells apart share a class. */
static void
classes(struct subset *s)
{
	bool cut[257] = { false };
	uint32_t c = 0;

	for (uint32_t i = 0; i < s->a->n_e; i++)
		if (!s->a->e[i].eps) {
			cut[s->a->e[i].lo] = true;
			cut[s->a->e[i].hi + 1] = true;
		}
	for (uint32_t b = 0; b < 256; b++) {
		if (b > 0 && cut[b])
			c++;
		s->d->cls[b] = (uint8_t)c;
	}
	s->d->n_cls = c + 1;
}

static int
sort_edges(struct subset *s)
{
	const struct gram_nfa *a = s->a;
	uint32_t *at;

	s->first = calloc((size_t)a->n + 1, sizeof *s->first);
	s->e = malloc(((size_t)a->n_e + 1) * sizeof *s->e);
	at = calloc((size_t)a->n + 1, sizeof *at);
	if (s->first == NULL || s->e == NULL || at == NULL) {
		free(at);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < a->n_e; i++)
		s->first[a->e[i].from + 1]++;
	for (uint32_t i = 0; i < a->n; i++)
		s->first[i + 1] += s->first[i];
	memcpy(at, s->first, a->n * sizeof *at);
	for (uint32_t i = 0; i < a->n_e; i++)
		s->e[at[a->e[i].from]++] = a->e[i];
	free(at);
	return 0;
}

static void
put(struct subset *s, uint32_t q)
{
	if (s->in[q])
		return;
	s->in[q] = 1;
	s->list[s->n_list++] = q;
}

static void
clear(struct subset *s)
{
	for (uint32_t i = 0; i < s->n_list; i++)
		s->in[s->list[i]] = 0;
	s->n_list = 0;
}

static int
by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* All that no byte is needed for joins the set. */
static void
close_over(struct subset *s)
{
	for (uint32_t i = 0; i < s->n_list; i++) {
		uint32_t q = s->list[i];

		for (uint32_t k = s->first[q]; k < s->first[q + 1]; k++)
			if (s->e[k].eps)
				put(s, s->e[k].to);
		s->work += 1 + s->first[q + 1] - s->first[q];
	}
	qsort(s->list, s->n_list, sizeof *s->list, by_number);
}

static uint32_t
hash_of(const struct subset *s)
{
	uint32_t h = 2166136261u;

	for (uint32_t i = 0; i < s->n_list; i++)
		h = (h ^ s->list[i]) * 16777619u;
	return h ^ h >> 15;
}

static int
grow(struct subset *s)
{
	struct gram_dfa *d = s->d;
	uint32_t cap = s->cap == 0 ? 64 : 2 * s->cap;
	void *p;

	p = realloc(s->set, cap * sizeof *s->set);
	if (p == NULL)
		return -ENOMEM;
	s->set = p;
	p = realloc(d->next, (size_t)cap * d->n_cls * sizeof *d->next);
	if (p == NULL)
		return -ENOMEM;
	d->next = p;
	p = realloc(d->flags, cap);
	if (p == NULL)
		return -ENOMEM;
	d->flags = p;
	s->cap = cap;
	return 0;
}

/* The state of the set, made if there is none; < 0: -errno. */
static int64_t
intern(struct subset *s, uint32_t accept)
{
	uint32_t slot, id = s->d->n;
	struct set *t;

	close_over(s);
	if (s->n_list == 0)
		return DFA_DEAD;
	slot = hash_of(s) & s->mask;
	for (; s->hash[slot] != 0; slot = (slot + 1) & s->mask) {
		t = &s->set[s->hash[slot] - 1];
		if (t->n == s->n_list && memcmp(t->v, s->list,
		    t->n * sizeof *t->v) == 0)
			return s->hash[slot] - 1;
	}
	if (id >= GRAM_MAX_DFA || s->work > GRAM_MAX_EFFORT)
		return -E2BIG;
	if (id == s->cap && grow(s) != 0)
		return -ENOMEM;
	t = &s->set[id];
	t->v = malloc(s->n_list * sizeof *t->v);
	if (t->v == NULL)
		return -ENOMEM;
	memcpy(t->v, s->list, s->n_list * sizeof *t->v);
	t->n = s->n_list;
	s->n_set++;
	s->d->n++;
	s->d->flags[id] = s->in[accept] ? DFA_ACCEPT : 0;
	for (uint32_t i = 0; i < t->n; i++)
		if (s->a->chr[t->v[i]])
			s->d->flags[id] |= DFA_CHAR;
	s->hash[slot] = id + 1;
	return id;
}

/* What a byte leads to from every state of a set. */
static void
follow(struct subset *s, const struct set *t, uint8_t byte)
{
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t q = t->v[i];

		s->work += 1 + s->first[q + 1] - s->first[q];
		for (uint32_t k = s->first[q]; k < s->first[q + 1]; k++)
			if (!s->e[k].eps && s->e[k].lo <= byte &&
			    byte <= s->e[k].hi)
				put(s, s->e[k].to);
	}
}

static int
explore(struct subset *s, uint32_t start, uint32_t accept)
{
	struct gram_dfa *d = s->d;
	uint8_t of[256];		/* a byte of each class */
	int64_t to;

	for (uint32_t b = 256; b-- > 0;)
		of[d->cls[b]] = (uint8_t)b;
	put(s, start);
	to = intern(s, accept);
	for (uint32_t q = 0; to >= 0 && q < d->n; q++)
		for (uint32_t c = 0; to >= 0 && c < d->n_cls; c++) {
			clear(s);
			follow(s, &s->set[q], of[c]);
			to = intern(s, accept);
			if (to >= 0)
				d->next[(size_t)q * d->n_cls + c] =
				    (uint16_t)to;
		}
	return to < 0 ? (int)to : 0;
}

/* --- cutting off ------------------------------------------------------- */

/* live[q]: an accepting state can be reached from q. */
static void
find_live(const struct gram_dfa *d, uint8_t *live)
{
	bool more = true;

	for (uint32_t q = 0; q < d->n; q++)
		live[q] = d->flags[q] & DFA_ACCEPT;
	while (more) {
		more = false;
		for (uint32_t q = d->n; q-- > 0;) {
			const uint16_t *row = d->next + (size_t)q * d->n_cls;

			for (uint32_t c = 0; !live[q] && c < d->n_cls; c++)
				if (row[c] != DFA_DEAD && live[row[c]])
					live[q] = more = true;
		}
	}
}

/* Only what is live stays; -EDOM if the start is not. */
static int
trim(struct gram_dfa *d)
{
	uint8_t *live = malloc(d->n);
	uint16_t *to = malloc(d->n * sizeof *to);
	uint32_t n = 0;
	int rc = 0;

	d->final = calloc(d->n, sizeof *d->final);
	if (live == NULL || to == NULL || d->final == NULL) {
		rc = -ENOMEM;
		goto out;
	}
	find_live(d, live);
	if (!live[0]) {
		rc = -EDOM;
		goto out;
	}
	for (uint32_t q = 0; q < d->n; q++)
		to[q] = live[q] ? (uint16_t)n++ : DFA_DEAD;
	for (uint32_t q = 0; q < d->n; q++) {
		const uint16_t *row = d->next + (size_t)q * d->n_cls;
		uint16_t *out;
		bool any = false;

		if (!live[q])
			continue;
		out = d->next + (size_t)to[q] * d->n_cls;
		for (uint32_t c = 0; c < d->n_cls; c++) {
			out[c] = row[c] == DFA_DEAD ? DFA_DEAD : to[row[c]];
			any |= out[c] != DFA_DEAD;
		}
		d->flags[to[q]] = d->flags[q];
		d->final[to[q]] = !any;
	}
	d->n = n;
out:
	free(to);
	free(live);
	return rc;
}

void
gram_dfa_free(struct gram_dfa *d)
{
	if (d == NULL)
		return;
	free(d->next);
	free(d->flags);
	free(d->final);
	free(d);
}

int
gram_dfa(const struct gram_nfa *a, uint32_t start, uint32_t accept,
    struct gram_dfa **out)
{
	struct subset s = { .a = a, .mask = 4 * 4096 - 1 };
	int rc = a->rc;

	if (rc != 0)
		return rc;
	s.d = calloc(1, sizeof *s.d);
	s.hash = calloc((size_t)s.mask + 1, sizeof *s.hash);
	s.in = calloc(1, a->n);
	s.list = malloc(a->n * sizeof *s.list);
	if (s.d == NULL || s.hash == NULL || s.in == NULL || s.list == NULL)
		rc = -ENOMEM;
	if (rc == 0)
		rc = sort_edges(&s);
	if (rc == 0) {
		classes(&s);
		rc = explore(&s, start, accept);
	}
	if (rc == 0)
		rc = trim(s.d);
	if (rc == 0)
		s.d->work = s.work;
	if (rc == 0)
		*out = s.d;
	else
		gram_dfa_free(s.d);
	for (uint32_t i = 0; i < s.n_set; i++)
		free(s.set[i].v);
	free(s.set);
	free(s.list);
	free(s.in);
	free(s.hash);
	free(s.e);
	free(s.first);
	return rc;
}

/* --- how many characters ----------------------------------------------- */

/*
 * States are pairs of a state of d and the characters begun so far, counted to
 * max, or to min where there is no max. A character begins where a state
 * between two of them is left by anything but the closing quote.
 */
int
gram_dfa_count(const struct gram_dfa *d, uint32_t min, uint32_t max,
    struct gram_dfa **out)
{
	uint32_t top = max != GRAM_NONE ? max : min;
	uint64_t n = (uint64_t)d->n * (top + 1ull);
	struct gram_dfa *p;
	int rc;

	if (n > GRAM_MAX_DFA)
		return -E2BIG;
	p = calloc(1, sizeof *p);
	if (p == NULL)
		return -ENOMEM;
	*p = (struct gram_dfa){ .n = (uint32_t)n, .n_cls = d->n_cls,
	    .work = d->work };
	memcpy(p->cls, d->cls, sizeof p->cls);
	p->next = malloc(n * d->n_cls * sizeof *p->next);
	p->flags = malloc(n);
	rc = p->next == NULL || p->flags == NULL ? -ENOMEM : 0;
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		uint32_t q = i / (top + 1), k = i % (top + 1);

		p->flags[i] = d->flags[q];
		for (uint32_t c = 0; c < d->n_cls; c++) {
			uint16_t to = d->next[(size_t)q * d->n_cls + c];
			bool chr = d->flags[q] & DFA_CHAR, ok = to != DFA_DEAD;
			uint32_t m = k;

			if (ok && chr && c == d->cls['"'])
				ok = k >= min;
			else if (ok && chr && k == top)
				ok = max == GRAM_NONE;
			else if (ok && chr)
				m++;
			p->next[(size_t)i * d->n_cls + c] = ok ?
			    (uint16_t)(to * (top + 1) + m) : DFA_DEAD;
		}
	}
	if (rc == 0)
		rc = trim(p);
	if (rc == 0)
		*out = p;
	else
		gram_dfa_free(p);
	return rc;
}
