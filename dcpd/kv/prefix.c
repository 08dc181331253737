/*
 * The prefix cache. Nodes lie in an array by page id and are found through one
 * hash table by (parent, 64 tokens), which every hit compares in full: equal
 * hashes are no reason to give a tenant another's rows.
 *
 * Idle pages are in one list, oldest first. A path is released leaf first, and
 * whoever holds a node holds its parents, so in the list a node is always
 * older than its parent: the oldest is always a leaf, and taking it is the
 * eviction of the least recently used leaf, in O(1).
 *
 * Step thread only.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "dcpd/kv/prefix.h"

#define PREFIX_MAGIC 0x50524658u
#define NONE DCPD_NO_PAGE
#define TOKENS DCPD_PAGE_TOKENS

struct node {
	uint32_t parent;	/* page; NONE: the text begins here */
	uint32_t chain;		/* next of the same bucket */
	uint32_t older, newer;	/* in the list of idle pages */
	uint32_t children;
	bool used;		/* is a node at all */
	bool idle;
	char *salt;		/* of a node without parent; or NULL */
};

struct dcpd_prefix {
	unsigned magic;
	struct dcpd_pages *pages;
	uint32_t n;		/* pages in all */
	uint32_t n_nodes, n_idle;
	uint32_t oldest, newest;	/* idle */
	struct node *node;	/* [n] */
	uint32_t *tokens;	/* [n][64] */
	uint32_t *bucket;	/* [n_buckets] first of chain */
	uint32_t n_buckets;	/* a power of two */
	uint64_t key;		/* so that nobody can aim at one bucket */
};

int
dcpd_prefix_new(struct dcpd_pages *pages, uint32_t n, struct dcpd_prefix **out)
{
	struct dcpd_prefix *t;

	if (n == 0 || n >= NONE / 2)
		return -EINVAL;
	t = calloc(1, sizeof *t);
	if (t == NULL)
		return -ENOMEM;
	t->n_buckets = 16;
	while (t->n_buckets < n)
		t->n_buckets *= 2;
	/* Zeroed by the kernel: memory is used as pages are. */
	t->node = calloc(n, sizeof *t->node);
	t->tokens = calloc(n, TOKENS * sizeof *t->tokens);
	t->bucket = malloc(t->n_buckets * sizeof *t->bucket);
	if (t->node == NULL || t->tokens == NULL || t->bucket == NULL) {
		free(t->bucket);
		free(t->tokens);
		free(t->node);
		free(t);
		return -ENOMEM;
	}
	memset(t->bucket, 0xff, t->n_buckets * sizeof *t->bucket);
	/* Without randomness only the defence is weaker. */
	if (getrandom(&t->key, sizeof t->key, GRND_NONBLOCK) !=
	    sizeof t->key)
		t->key = dcpd_now_ns();
	t->magic = PREFIX_MAGIC;
	t->pages = pages;
	t->n = n;
	t->oldest = t->newest = NONE;
	*out = t;
	return 0;
}

void
dcpd_prefix_free(struct dcpd_prefix *t)
{
	if (t == NULL)
		return;
	DCPD_CHECK(t, PREFIX_MAGIC);
	dcpd_prefix_evict(t, t->n_idle);
	DCPD_ASSERT(t->n_nodes == 0);
	t->magic = 0;
	free(t->bucket);
	free(t->tokens);
	free(t->node);
	free(t);
}

/* --- nodes by their text ----------------------------------------------- */

static uint64_t
stir(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint32_t *
bucket_of(const struct dcpd_prefix *t, const char *salt, uint32_t parent,
    const uint32_t *tokens)
{
	uint64_t h = stir(t->key, parent), v;

	if (parent == NONE && salt != NULL)
		for (const char *c = salt; *c != '\0'; c++)
			h = stir(h, (unsigned char)*c + 1u);
	for (uint32_t i = 0; i < TOKENS; i += 2) {
		memcpy(&v, tokens + i, sizeof v);
		h = stir(h, v);
	}
	return &t->bucket[stir(h, h >> 32) & (t->n_buckets - 1)];
}

static bool
same_salt(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static uint32_t
find(const struct dcpd_prefix *t, const char *salt, uint32_t parent,
    const uint32_t *tokens)
{
	uint32_t i = *bucket_of(t, salt, parent, tokens);

	while (i != NONE && !(t->node[i].parent == parent &&
	    memcmp(t->tokens + (size_t)i * TOKENS, tokens,
	    TOKENS * sizeof *tokens) == 0 &&
	    (parent != NONE || same_salt(t->node[i].salt, salt))))
		i = t->node[i].chain;
	return i;
}

static void
unchain(struct dcpd_prefix *t, uint32_t page)
{
	const struct node *nd = &t->node[page];
	uint32_t *p = bucket_of(t, nd->salt, nd->parent,
	    t->tokens + (size_t)page * TOKENS);

	while (*p != page)
		p = &t->node[*p].chain;
	*p = nd->chain;
}

/* --- idle pages -------------------------------------------------------- */

static void
make_idle(struct dcpd_prefix *t, uint32_t page)
{
	struct node *nd = &t->node[page];

	DCPD_ASSERT(nd->used && !nd->idle);
	nd->idle = true;
	nd->older = t->newest;
	nd->newer = NONE;
	if (t->newest != NONE)
		t->node[t->newest].newer = page;
	else
		t->oldest = page;
	t->newest = page;
	t->n_idle++;
}

static void
make_busy(struct dcpd_prefix *t, uint32_t page)
{
	struct node *nd = &t->node[page];

	if (!nd->idle)
		return;
	if (nd->older != NONE)
		t->node[nd->older].newer = nd->newer;
	else
		t->oldest = nd->newer;
	if (nd->newer != NONE)
		t->node[nd->newer].older = nd->older;
	else
		t->newest = nd->older;
	nd->idle = false;
	t->n_idle--;
}

uint32_t
dcpd_prefix_evict(struct dcpd_prefix *t, uint32_t n)
{
	uint32_t k = 0, page;
	struct node *nd;

	DCPD_CHECK(t, PREFIX_MAGIC);
	for (; k < n && t->oldest != NONE; k++) {
		page = t->oldest;
		nd = &t->node[page];
		DCPD_ASSERT(nd->children == 0);
		make_busy(t, page);
		unchain(t, page);
		if (nd->parent != NONE)
			t->node[nd->parent].children--;
		free(nd->salt);
		memset(nd, 0, sizeof *nd);
		t->n_nodes--;
		dcpd_pages_put(t->pages, &page, 1);
	}
	return k;
}

/* --- for requests ------------------------------------------------------ */

uint32_t
dcpd_prefix_match(const struct dcpd_prefix *t, const char *salt,
    const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t *table)
{
	uint32_t i = from, page;

	DCPD_CHECK(t, PREFIX_MAGIC);
	for (; i < to; i++) {
		page = find(t, salt, i == 0 ? NONE : table[i - 1],
		    tokens + (size_t)i * TOKENS);
		if (page == NONE)
			break;
		table[i] = page;
	}
	return i;
}

void
dcpd_prefix_hold(struct dcpd_prefix *t, const uint32_t *table, uint32_t n)
{
	DCPD_CHECK(t, PREFIX_MAGIC);
	for (uint32_t i = 0; i < n; i++) {
		DCPD_ASSERT(table[i] < t->n && t->node[table[i]].used);
		make_busy(t, table[i]);
		dcpd_pages_ref(t->pages, table[i]);
	}
}

uint32_t
dcpd_prefix_add(struct dcpd_prefix *t, const char *salt, uint32_t parent,
    const uint32_t *tokens, uint32_t page)
{
	uint32_t there = find(t, salt, parent, tokens), *b;
	struct node *nd = &t->node[page];
	char *own = NULL;

	DCPD_CHECK(t, PREFIX_MAGIC);
	DCPD_ASSERT(page < t->n && !nd->used &&
	    dcpd_pages_refs(t->pages, page) == 1);
	if (there != NONE) {
		dcpd_prefix_hold(t, &there, 1);
		dcpd_pages_put(t->pages, &page, 1);
		return there;
	}
	if (parent == NONE && salt != NULL && (own = strdup(salt)) == NULL)
		return NONE;
	b = bucket_of(t, salt, parent, tokens);
	*nd = (struct node){
		.parent = parent, .chain = *b, .older = NONE, .newer = NONE,
		.used = true, .salt = own,
	};
	*b = page;
	memcpy(t->tokens + (size_t)page * TOKENS, tokens,
	    TOKENS * sizeof *tokens);
	if (parent != NONE)
		t->node[parent].children++;
	t->n_nodes++;
	dcpd_pages_ref(t->pages, page);		/* the tree's own */
	return page;
}

void
dcpd_prefix_release(struct dcpd_prefix *t, const uint32_t *table, uint32_t n)
{
	DCPD_CHECK(t, PREFIX_MAGIC);
	/* Leaf first: a node is older than its parent. */
	while (n-- > 0) {
		DCPD_ASSERT(t->node[table[n]].used &&
		    dcpd_pages_refs(t->pages, table[n]) > 1);
		dcpd_pages_put(t->pages, &table[n], 1);
		if (dcpd_pages_refs(t->pages, table[n]) == 1)
			make_idle(t, table[n]);
	}
}

uint32_t
dcpd_prefix_n_idle(const struct dcpd_prefix *t)
{
	return t->n_idle;
}

uint32_t
dcpd_prefix_n_nodes(const struct dcpd_prefix *t)
{
	return t->n_nodes;
}

uint32_t
dcpd_prefix_idle_of(const struct dcpd_prefix *t, const uint32_t *table,
    uint32_t n)
{
	uint32_t idle = 0;

	for (uint32_t i = 0; i < n; i++)
		idle += t->node[table[i]].idle;
	return idle;
}

/* --- the invariant ----------------------------------------------------- */

static int
check_node(const struct dcpd_prefix *t, uint32_t page, struct dcpd_err *err)
{
	const struct node *nd = &t->node[page];
	uint32_t refs = dcpd_pages_refs(t->pages, page);

	if (refs == 0 || nd->idle != (refs == 1))
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u has %u "
		    "references and is %sidle", page, refs,
		    nd->idle ? "" : "not ");
	if (find(t, nd->salt, nd->parent,
	    t->tokens + (size_t)page * TOKENS) != page)
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u is not found "
		    "by its tokens", page);
	if (nd->parent == NONE)
		return 0;
	if (nd->parent >= t->n || !t->node[nd->parent].used)
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u has parent "
		    "%u, which is no node", page, nd->parent);
	/* A request that holds a node holds its parents. */
	if (dcpd_pages_refs(t->pages, nd->parent) < refs)
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u has %u "
		    "references, its parent %u fewer", page, refs, nd->parent);
	return 0;
}

/* children [n]: counted here and compared. */
static int
check_children(const struct dcpd_prefix *t, uint32_t *children,
    struct dcpd_err *err)
{
	uint32_t nodes = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		nodes += t->node[i].used;
		if (t->node[i].used && t->node[i].parent != NONE)
			children[t->node[i].parent]++;
	}
	for (uint32_t i = 0; i < t->n; i++)
		if (children[i] != t->node[i].children)
			return dcpd_fail(err, -EUCLEAN, "prefix: page %u has "
			    "%u children, %u say so", i, t->node[i].children,
			    children[i]);
	return nodes == t->n_nodes ? 0 : dcpd_fail(err, -EUCLEAN,
	    "prefix: %u nodes, counted %u", t->n_nodes, nodes);
}

/* children [n]: comes with how many each has; every idle one comes before. */
static int
check_idle(const struct dcpd_prefix *t, uint32_t *children,
    struct dcpd_err *err)
{
	uint32_t n = 0, before = NONE;

	for (uint32_t i = t->oldest; i != NONE; i = t->node[i].newer) {
		if (!t->node[i].idle || t->node[i].older != before ||
		    n++ >= t->n)
			return dcpd_fail(err, -EUCLEAN, "prefix: the list of "
			    "idle pages is broken at page %u", i);
		if (children[i] != 0)
			return dcpd_fail(err, -EUCLEAN, "prefix: page %u goes "
			    "before %u of its children", i, children[i]);
		if (t->node[i].parent != NONE)
			children[t->node[i].parent]--;
		before = i;
	}
	return n == t->n_idle && t->newest == before ? 0 : dcpd_fail(err,
	    -EUCLEAN, "prefix: %u idle pages, counted %u", t->n_idle, n);
}

int
dcpd_prefix_check(const struct dcpd_prefix *t, struct dcpd_err *err)
{
	uint32_t *children;
	int rc = 0;

	DCPD_CHECK(t, PREFIX_MAGIC);
	children = calloc(t->n, sizeof *children);
	if (children == NULL)
		return dcpd_fail(err, -ENOMEM, "prefix: out of memory");
	for (uint32_t i = 0; i < t->n && rc == 0; i++)
		if (t->node[i].used)
			rc = check_node(t, i, err);
	if (rc == 0)
		rc = check_children(t, children, err);
	if (rc == 0)
		rc = check_idle(t, children, err);
	free(children);
	return rc;
}
