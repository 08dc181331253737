/*
 * The prefix cache's tree: what is found, whose pages they are, what goes
 * first; and random use against a plain list of texts.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/kv/prefix.h"

#define PAGES 40u

static struct dcpd_pages *P;
static struct dcpd_prefix *T;

static void
open_with_host(uint32_t pages, uint32_t slots)
{
	ck_assert_int_eq(dcpd_pages_new(pages, &P), 0);
	ck_assert_int_eq(dcpd_prefix_new(P, pages, slots, &T), 0);
}

static void
open_tree(uint32_t pages)
{
	open_with_host(pages, 0);
}

static void
close_tree(void)
{
	dcpd_prefix_free(T);
	ck_assert_uint_eq(dcpd_pages_n_used(P), 0);
	dcpd_pages_free(P);
}

static void
check(void)
{
	struct dcpd_err err = { 0 };

	ck_assert_msg(dcpd_prefix_check(T, &err) == 0 &&
	    dcpd_pages_check(P, &err) == 0, "%s", err.text);
}

/* Pages of text: page i holds kind[i], and differs in its last token alone. */
static void
text(const char *kind, uint32_t *tokens)
{
	for (uint32_t i = 0; kind[i] != '\0'; i++) {
		for (uint32_t k = 0; k < 64; k++)
			tokens[64 * i + k] = k;
		tokens[64 * i + 63] = (uint32_t)kind[i];
	}
}

/* What a request does: what is there, the rest new. Returns the hit. */
static uint32_t
use(const char *salt, const char *kind, uint32_t *table)
{
	uint32_t tokens[64 * 8], n = (uint32_t)strlen(kind), hit;

	text(kind, tokens);
	hit = dcpd_prefix_match(T, salt, tokens, 0, n, table);
	dcpd_prefix_hold(T, table, hit);
	for (uint32_t i = hit; i < n; i++) {
		if (dcpd_pages_n_free(P) == 0)
			ck_assert_uint_eq(dcpd_prefix_evict(T, 1), 1);
		ck_assert_int_eq(dcpd_pages_get(P, 1, &table[i]), 0);
		ck_assert_uint_eq(dcpd_prefix_add(T, salt,
		    i == 0 ? DCPD_NO_PAGE : table[i - 1], tokens + 64 * i,
		    table[i]), table[i]);
	}
	check();
	return hit;
}

static uint32_t
hit(const char *salt, const char *kind)
{
	uint32_t tokens[64 * 8], table[8];

	text(kind, tokens);
	return dcpd_prefix_match(T, salt, tokens, 0, (uint32_t)strlen(kind),
	    table);
}

static void
use_and_leave(const char *salt, const char *kind)
{
	uint32_t table[8];

	use(salt, kind, table);
	dcpd_prefix_release(T, table, (uint32_t)strlen(kind));
}

START_TEST(the_longest_whole_prefix_is_found)
{
	uint32_t table[8], again[8], tokens[64 * 4];

	open_tree(PAGES);
	ck_assert_uint_eq(use(NULL, "abc", table), 0);
	ck_assert_uint_eq(hit(NULL, "abc"), 3);
	ck_assert_uint_eq(hit(NULL, "abd"), 2);
	ck_assert_uint_eq(hit(NULL, "abcd"), 3);
	/* A page is known by all the text before it, not by its own. */
	ck_assert_uint_eq(hit(NULL, "b"), 0);
	ck_assert_uint_eq(hit(NULL, "aabc"), 1);
	ck_assert_uint_eq(use(NULL, "abx", again), 2);
	ck_assert_mem_eq(table, again, 2 * sizeof *table);
	ck_assert_uint_ne(table[2], again[2]);
	ck_assert_uint_eq(dcpd_pages_n_used(P), 4);
	/* From the middle on. */
	text("abc", tokens);
	again[2] = 99;
	ck_assert_uint_eq(dcpd_prefix_match(T, NULL, tokens, 2, 3, again), 3);
	ck_assert_uint_eq(again[2], table[2]);
	/* One token differs, in the middle of a page. */
	tokens[64 + 30]++;
	ck_assert_uint_eq(dcpd_prefix_match(T, NULL, tokens, 0, 3, again), 1);
	dcpd_prefix_release(T, table, 3);
	again[2] = table[2];
	use(NULL, "abx", again);
	dcpd_prefix_release(T, again, 3);
	dcpd_prefix_release(T, again, 3);
	check();
	close_tree();
}
END_TEST

START_TEST(salts_share_nothing)
{
	uint32_t a[8], b[8], c[8];
	char salt[3] = "s0";

	open_tree(PAGES);
	use(NULL, "abc", a);
	ck_assert_uint_eq(use("x", "abc", b), 0);
	ck_assert_uint_eq(use("y", "ab", c), 0);
	ck_assert_uint_eq(dcpd_pages_n_used(P), 8);
	ck_assert_uint_eq(hit("x", "abc"), 3);
	ck_assert_uint_eq(hit("y", "abc"), 2);
	ck_assert_uint_eq(hit("xy", "abc"), 0);
	ck_assert_uint_eq(hit(NULL, "abc"), 3);
	dcpd_prefix_release(T, a, 3);
	dcpd_prefix_release(T, b, 3);
	dcpd_prefix_release(T, c, 2);
	/* Many of one text, in the same buckets, too. */
	for (; salt[1] < '0' + 30; salt[1]++) {
		ck_assert_uint_eq(hit(salt, "a"), 0);
		use_and_leave(salt, "a");
		ck_assert_uint_eq(hit(salt, "a"), 1);
	}
	close_tree();
}
END_TEST

/* Two computed the same at once: the later page goes, its request shares. */
START_TEST(what_is_there_already_is_not_kept_twice)
{
	uint32_t tokens[64], page[2], got;

	open_tree(PAGES);
	text("a", tokens);
	ck_assert_int_eq(dcpd_pages_get(P, 2, page), 0);
	got = dcpd_prefix_add(T, NULL, DCPD_NO_PAGE, tokens, page[0]);
	ck_assert_uint_eq(got, page[0]);
	got = dcpd_prefix_add(T, NULL, DCPD_NO_PAGE, tokens, page[1]);
	ck_assert_uint_eq(got, page[0]);
	ck_assert_uint_eq(dcpd_pages_refs(P, page[0]), 3);
	ck_assert_uint_eq(dcpd_pages_refs(P, page[1]), 0);
	check();
	dcpd_prefix_release(T, &got, 1);
	ck_assert_uint_eq(dcpd_prefix_n_idle(T), 0);
	dcpd_prefix_release(T, &got, 1);
	ck_assert_uint_eq(dcpd_prefix_n_idle(T), 1);
	/* An idle one, too. */
	ck_assert_int_eq(dcpd_pages_get(P, 1, page), 0);
	got = dcpd_prefix_add(T, NULL, DCPD_NO_PAGE, tokens, page[0]);
	ck_assert_uint_ne(got, page[0]);
	ck_assert_uint_eq(dcpd_prefix_n_idle(T), 0);
	dcpd_prefix_release(T, &got, 1);
	check();
	close_tree();
}
END_TEST

START_TEST(the_least_recently_used_leaf_goes_first)
{
	uint32_t held[8];

	open_tree(PAGES);
	use_and_leave(NULL, "abc");
	use_and_leave(NULL, "abd");
	use_and_leave(NULL, "x");
	use_and_leave(NULL, "abc");	/* now d is the oldest, then x */
	ck_assert_uint_eq(dcpd_prefix_n_idle(T), 5);
	ck_assert_uint_eq(dcpd_prefix_evict(T, 1), 1);
	ck_assert_uint_eq(hit(NULL, "abd"), 2);
	ck_assert_uint_eq(hit(NULL, "x"), 1);
	ck_assert_uint_eq(dcpd_prefix_evict(T, 1), 1);
	ck_assert_uint_eq(hit(NULL, "x"), 0);
	ck_assert_uint_eq(hit(NULL, "abc"), 3);
	/* What is held stays; its parents too. */
	use(NULL, "ab", held);
	check();
	ck_assert_uint_eq(dcpd_prefix_evict(T, 100), 1);
	ck_assert_uint_eq(hit(NULL, "abc"), 2);
	ck_assert_uint_eq(dcpd_prefix_evict(T, 100), 0);
	dcpd_prefix_release(T, held, 2);
	/* Leaf before parent. */
	ck_assert_uint_eq(dcpd_prefix_evict(T, 1), 1);
	ck_assert_uint_eq(hit(NULL, "abc"), 1);
	check();
	close_tree();
}
END_TEST

START_TEST(check_finds_what_is_wrong)
{
	struct dcpd_err err;
	uint32_t table[8];

	open_tree(PAGES);
	use(NULL, "ab", table);
	dcpd_prefix_release(T, table, 2);
	dcpd_pages_ref(P, table[1]);
	ck_assert_int_eq(dcpd_prefix_check(T, &err), -EUCLEAN);
	ck_assert_ptr_nonnull(strstr(err.text, "2 references and is idle"));
	dcpd_pages_put(P, &table[1], 1);
	check();
	dcpd_prefix_hold(T, table, 2);
	dcpd_pages_ref(P, table[1]);
	ck_assert_int_eq(dcpd_prefix_check(T, &err), -EUCLEAN);
	ck_assert_ptr_nonnull(strstr(err.text, "fewer"));
	dcpd_pages_put(P, &table[1], 1);
	dcpd_prefix_release(T, table, 2);
	close_tree();
}
END_TEST

/* --- against a plain list ---------------------------------------------- */

struct known {			/* a text, and the page of its end */
	const char *salt;
	char kind[8];
	uint32_t page, holders;
	uint64_t used;		/* when it was last let go */
};
struct holder {
	const char *salt;
	char kind[8];
	uint32_t table[8];
};

static struct known list[PAGES];
static uint32_t n_list;
static uint64_t now;

static struct known *
known(const char *salt, const char *kind, size_t n)
{
	for (uint32_t i = 0; i < n_list; i++)
		if (list[i].salt == salt && strlen(list[i].kind) == n &&
		    strncmp(list[i].kind, kind, n) == 0)
			return &list[i];
	return NULL;
}

static bool
has_child(const struct known *a)
{
	size_t n = strlen(a->kind);

	for (uint32_t i = 0; i < n_list; i++)
		if (list[i].salt == a->salt && strlen(list[i].kind) == n + 1 &&
		    strncmp(list[i].kind, a->kind, n) == 0)
			return true;
	return false;
}

/* The tree evicts one; it must be this one. False: none may go. */
static bool
evict_one(void)
{
	struct known *old = NULL;

	for (uint32_t i = 0; i < n_list; i++)
		if (list[i].holders == 0 && !has_child(&list[i]) &&
		    (old == NULL || list[i].used < old->used))
			old = &list[i];
	ck_assert_uint_eq(dcpd_prefix_evict(T, 1), old != NULL);
	if (old == NULL)
		return false;
	ck_assert_uint_eq(dcpd_pages_refs(P, old->page), 0);
	*old = list[--n_list];
	return true;
}

static void
take(struct holder *h, const char *salt, const char *kind)
{
	uint32_t tokens[64 * 8], n = (uint32_t)strlen(kind), got, i = 0;
	struct known *k;

	text(kind, tokens);
	got = dcpd_prefix_match(T, salt, tokens, 0, n, h->table);
	for (; (k = known(salt, kind, i + 1)) != NULL && i < n; i++) {
		ck_assert_uint_lt(i, got);
		ck_assert_uint_eq(h->table[i], k->page);
		k->holders++;
	}
	ck_assert_uint_eq(got, i);
	dcpd_prefix_hold(T, h->table, got);
	for (; i < n; i++) {
		if (dcpd_pages_n_free(P) == 0 && !evict_one())
			break;
		ck_assert_int_eq(dcpd_pages_get(P, 1, &h->table[i]), 0);
		ck_assert_uint_eq(dcpd_prefix_add(T, salt,
		    i == 0 ? DCPD_NO_PAGE : h->table[i - 1], tokens + 64 * i,
		    h->table[i]), h->table[i]);
		k = &list[n_list++];
		*k = (struct known){ .salt = salt, .page = h->table[i],
		    .holders = 1 };
		memcpy(k->kind, kind, i + 1);
	}
	h->salt = salt;
	memset(h->kind, 0, sizeof h->kind);
	memcpy(h->kind, kind, i);
}

static void
leave(struct holder *h)
{
	uint32_t n = (uint32_t)strlen(h->kind);
	struct known *k;

	dcpd_prefix_release(T, h->table, n);
	for (; n > 0; n--) {
		k = known(h->salt, h->kind, n);
		if (--k->holders == 0)
			k->used = ++now;
	}
	h->kind[0] = '\0';
}

START_TEST(random_use_agrees_with_a_plain_list)
{
	static const char *const salts[] = { NULL, NULL, "s", "t" };
	struct holder h[7] = { 0 };
	unsigned seed = (unsigned)_i + 1;
	uint32_t evicted = 0, hits = 0;

	open_tree(PAGES);
	n_list = 0;
	for (unsigned i = 0; i < 20000; i++) {
		struct holder *one = &h[(unsigned)rand_r(&seed) % 7];
		uint32_t idle = 0, n = 1 + (uint32_t)rand_r(&seed) % 6;
		char kind[8] = { 0 };

		for (uint32_t k = 0; k < n; k++)
			kind[k] = (char)('a' + rand_r(&seed) % 2);
		if (one->kind[0] != '\0') {
			leave(one);
		} else if (rand_r(&seed) % 5 == 0) {
			evicted += evict_one();
		} else {
			take(one, salts[rand_r(&seed) % 4], kind);
			hits += strlen(one->kind) > 0;
		}
		for (uint32_t k = 0; k < n_list; k++)
			idle += list[k].holders == 0;
		ck_assert_uint_eq(dcpd_prefix_n_idle(T), idle);
		ck_assert_uint_eq(dcpd_prefix_n_nodes(T), n_list);
		ck_assert_uint_eq(dcpd_pages_n_used(P), n_list);
		check();
	}
	ck_assert_uint_gt(evicted, 100);
	ck_assert_uint_gt(hits, 100);
	for (unsigned i = 0; i < 7; i++)
		leave(&h[i]);
	close_tree();
}
END_TEST

/* --- host memory ------------------------------------------------------- */

/* What the pages and slots hold: the text up to their end, as a number. */
static uint64_t pool_rows[PAGES], host_rows[PAGES];
static uint32_t at_once = UINT32_MAX;	/* pages that come back in a call */

static uint64_t
rows_of(const char *salt, const char *kind, size_t n)
{
	uint64_t h = salt == NULL ? 7 : (uint64_t)salt[0];

	for (size_t i = 0; i < n; i++)
		h = h * 1000003 + (uint64_t)kind[i];
	return h;
}

static void
do_moves(void)
{
	const struct dcpd_move *m;
	uint32_t n;

	m = dcpd_prefix_moves(T, &n);
	for (uint32_t i = 0; i < n; i++)
		if (m[i].page == DCPD_NO_PAGE)
			ck_assert(m[i].out);
		else if (m[i].out)
			host_rows[m[i].slot] = pool_rows[m[i].page];
		else
			pool_rows[m[i].page] = host_rows[m[i].slot];
	dcpd_prefix_moved(T);
}

/*
 * As a request: what the pool has, what host memory has, the rest computed,
 * while pages can be had. Moves are done before anything is computed, if at
 * all. Returns its pages; *back: how many of them came back.
 */
static uint32_t
run(const char *salt, const char *kind, uint32_t *table, uint32_t *back)
{
	uint32_t tokens[64 * 8], n = (uint32_t)strlen(kind), i, j, from;
	bool more;

	text(kind, tokens);
	i = dcpd_prefix_match(T, salt, tokens, 0, n, table);
	dcpd_prefix_hold(T, table, i);
	/* All of it, but no more than so many at a time. */
	for (j = i, more = true; more; check()) {
		from = j;
		j = dcpd_prefix_restore(T, salt, tokens, j, n, at_once, table,
		    &more);
		ck_assert(j - from <= at_once && (!more || j > from));
	}
	*back = j - i;
	for (i = j; i < n; i++) {
		if (dcpd_pages_n_free(P) == 0 && dcpd_prefix_evict(T, 1) == 0)
			break;
		ck_assert_int_eq(dcpd_pages_get(P, 1, &table[i]), 0);
		do_moves();
		pool_rows[table[i]] = rows_of(salt, kind, i + 1);
		table[i] = dcpd_prefix_add(T, salt, i == 0 ? DCPD_NO_PAGE :
		    table[i - 1], tokens + 64 * i, table[i]);
		check();
	}
	return i;
}

static uint32_t
run_and_leave(const char *kind)
{
	uint32_t table[8], back, n = run(NULL, kind, table, &back);

	ck_assert_uint_eq(n, strlen(kind));
	do_moves();
	for (uint32_t i = 0; i < n; i++)
		ck_assert_uint_eq(pool_rows[table[i]], rows_of(NULL, kind,
		    i + 1));
	dcpd_prefix_release(T, table, n);
	check();
	return back;
}

START_TEST(evicted_pages_come_back_from_host_memory)
{
	open_with_host(4, 8);
	ck_assert_uint_eq(run_and_leave("abcd"), 0);
	ck_assert_uint_eq(run_and_leave("wxyz"), 0);
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 4);
	ck_assert_uint_eq(dcpd_prefix_n_nodes(T), 4);
	ck_assert_uint_eq(hit(NULL, "abcd"), 0);	/* not in the pool */
	ck_assert_uint_eq(run_and_leave("abcd"), 4);
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 4);	/* the others */
	/* The pool has its beginning, host memory the rest. */
	ck_assert_uint_eq(run_and_leave("wx"), 2);
	ck_assert_uint_eq(hit(NULL, "abcd"), 2);
	ck_assert_uint_eq(run_and_leave("abcd"), 2);
	ck_assert_uint_eq(dcpd_prefix_n_evicted(T), 4 + 4 + 2 + 2);
	close_tree();
}
END_TEST

/* A page that left and came back, or is another text's, has another number. */
START_TEST(a_stay_in_the_tree_has_a_number_of_its_own)
{
	uint32_t table[8], back, was;
	uint64_t a, b;

	open_with_host(2, 8);
	ck_assert_uint_eq(run(NULL, "ab", table, &back), 2);
	a = dcpd_prefix_serial(T, table[0]);
	b = dcpd_prefix_serial(T, table[1]);
	ck_assert(a != 0 && b != 0 && a != b);
	was = table[1];
	dcpd_prefix_release(T, table, 2);
	ck_assert_uint_eq(dcpd_prefix_serial(T, was), b);
	dcpd_prefix_evict(T, 1);
	ck_assert_uint_eq(dcpd_prefix_serial(T, was), 0);
	ck_assert_uint_eq(run(NULL, "ab", table, &back), 2);
	ck_assert_uint_eq(back, 1);
	ck_assert_uint_eq(dcpd_prefix_serial(T, table[0]), a);
	ck_assert_uint_gt(dcpd_prefix_serial(T, table[1]), b);
	dcpd_prefix_release(T, table, 2);
	close_tree();
}
END_TEST

/* Whoever must leave while a text comes back in parts: not its own rest. */
START_TEST(what_comes_back_in_parts_stays_until_then)
{
	uint32_t table[8], back;

	open_with_host(4, 4);
	run_and_leave("abcd");
	run_and_leave("efgh");
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 4);
	at_once = 1;
	ck_assert_uint_eq(run(NULL, "abcd", table, &back), 4);
	ck_assert_uint_eq(back, 4);
	at_once = UINT32_MAX;
	dcpd_prefix_release(T, table, 4);
	close_tree();
}
END_TEST

START_TEST(the_least_recently_used_of_host_memory_leave)
{
	open_with_host(2, 3);
	run_and_leave("ab");
	run_and_leave("cd");
	run_and_leave("ef");		/* d c of cd; b went, a is there yet */
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 3);
	ck_assert_uint_eq(run_and_leave("a"), 1);
	/* f went out for it, and d, the oldest leaf, for f. */
	ck_assert_uint_eq(run_and_leave("cd"), 1);
	ck_assert_uint_eq(run_and_leave("ab"), 1);
	close_tree();
}
END_TEST

/* Computed anew although host memory had it: the two become one. */
START_TEST(computed_anew_takes_the_place_of_the_copy)
{
	uint32_t tokens[64 * 2], page;

	open_with_host(2, 4);
	run_and_leave("ab");
	run_and_leave("cd");
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 2);
	ck_assert_uint_eq(dcpd_prefix_evict(T, 1), 1);
	text("ab", tokens);
	ck_assert_int_eq(dcpd_pages_get(P, 1, &page), 0);
	ck_assert_uint_eq(dcpd_prefix_add(T, NULL, DCPD_NO_PAGE, tokens, page),
	    page);
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 2);	/* b, d */
	check();
	dcpd_prefix_release(T, &page, 1);
	pool_rows[page] = rows_of(NULL, "a", 1);
	do_moves();
	ck_assert_uint_eq(run_and_leave("ab"), 1);
	ck_assert_uint_eq(dcpd_prefix_drop(T), 4);
	ck_assert_uint_eq(dcpd_prefix_n_host(T), 0);
	ck_assert_uint_eq(dcpd_pages_n_used(P), 0);
	close_tree();
}
END_TEST

START_TEST(random_use_with_host_memory_finds_the_right_rows)
{
	static const char *const salts[] = { NULL, NULL, "s" };
	static const uint32_t slots[] = { 1, 3, 20, 40 };
	struct { uint32_t table[8], n; } h[5] = { 0 };
	unsigned seed = (unsigned)_i + 1;
	uint64_t came_back = 0, was = 0;

	open_with_host(14, slots[_i]);
	for (unsigned i = 0; i < 20000; i++) {
		unsigned one = (unsigned)rand_r(&seed) % 5;
		uint32_t n = 1 + (uint32_t)rand_r(&seed) % 6, back;
		const char *salt = salts[rand_r(&seed) % 3];
		char kind[8] = { 0 };

		for (uint32_t k = 0; k < n; k++)
			kind[k] = (char)('a' + rand_r(&seed) % 3);
		if (rand_r(&seed) % 500 == 0)
			dcpd_prefix_drop(T);
		if (h[one].n > 0) {
			dcpd_prefix_release(T, h[one].table, h[one].n);
			h[one].n = 0;
		} else {
			at_once = rand_r(&seed) % 2 == 0 ? UINT32_MAX :
			    1 + (uint32_t)rand_r(&seed) % 3;
			h[one].n = run(salt, kind, h[one].table, &back);
			came_back += back;
			/* Now and then they wait for later ones. */
			if (rand_r(&seed) % 3 > 0) {
				do_moves();
				for (uint32_t k = 0; k < h[one].n; k++)
					ck_assert_uint_eq(
					    pool_rows[h[one].table[k]],
					    rows_of(salt, kind, k + 1));
			}
		}
		ck_assert_uint_le(dcpd_prefix_n_host(T), slots[_i]);
		ck_assert_uint_ge(dcpd_prefix_n_evicted(T), was);
		was = dcpd_prefix_n_evicted(T);
		check();
	}
	ck_assert_uint_gt(came_back, 100);
	for (unsigned i = 0; i < 5; i++)
		dcpd_prefix_release(T, h[i].table, h[i].n);
	close_tree();
}
END_TEST

START_TEST(no_pages_is_refused)
{
	ck_assert_int_eq(dcpd_pages_new(1, &P), 0);
	ck_assert_int_eq(dcpd_prefix_new(P, 0, 0, &T), -EINVAL);
	dcpd_pages_free(P);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("prefix");
	TCase *t = tcase_create("prefix");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, the_longest_whole_prefix_is_found);
	tcase_add_test(t, salts_share_nothing);
	tcase_add_test(t, what_is_there_already_is_not_kept_twice);
	tcase_add_test(t, the_least_recently_used_leaf_goes_first);
	tcase_add_test(t, check_finds_what_is_wrong);
	tcase_add_loop_test(t, random_use_agrees_with_a_plain_list, 0, 3);
	tcase_add_test(t, evicted_pages_come_back_from_host_memory);
	tcase_add_test(t, a_stay_in_the_tree_has_a_number_of_its_own);
	tcase_add_test(t, what_comes_back_in_parts_stays_until_then);
	tcase_add_test(t, the_least_recently_used_of_host_memory_leave);
	tcase_add_test(t, computed_anew_takes_the_place_of_the_copy);
	tcase_add_loop_test(t,
	    random_use_with_host_memory_finds_the_right_rows, 0, 4);
	tcase_add_test(t, no_pages_is_refused);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
