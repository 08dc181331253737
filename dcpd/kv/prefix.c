/*
 * The prefix cache. Nodes are found through one hash table by (parent, 64
 * tokens), which every hit compares in full: equal hashes are no reason to give
 * a tenant another's rows. A node has a page of the pool, or, when that was
 * needed for others, a slot of host memory (with no slots it is gone then).
 *
 * Idle pages are in one list, oldest first. A path is released leaf first, and
 * whoever holds a node holds its parents, so in the list a node is always
 * older than its parent: the oldest has no child in the pool, and taking it is
 * the eviction of the least recently used leaf, in O(1). They go to host memory
 * in that order and are listed there in the same way, so that the oldest there
 * is a leaf of the whole tree.
 *
 * Rows are not moved here: what must be moved is queued, and the owner does it,
 * in order, before anything writes to a page.
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
	uint32_t page, slot;	/* NONE; both: it is no node, but free */
	uint32_t parent;	/* node; NONE: the text begins here */
	uint32_t chain;		/* next of the same bucket; next free one */
	uint32_t older, newer;	/* in its list */
	uint32_t children;	/* of these in the pool: */
	uint32_t in_pool;
	uint64_t serial;	/* of its being in the pool: never twice */
	struct list *list;	/* idle, host, or NULL: held, or coming back */
	char *salt;		/* of a node without parent; or NULL */
};

struct list {
	uint32_t oldest, newest, n;
};

struct dcpd_prefix {
	unsigned magic;
	struct dcpd_pages *pages;
	uint32_t n_pages, n_slots;
	uint32_t n;		/* nodes that there can be: the sum */
	uint32_t n_pool, n_host;	/* nodes that have a page, a slot */
	uint64_t n_evicted, serial;
	struct list idle, host;
	struct node *node;	/* [n] */
	uint32_t *tokens;	/* [n][64] */
	uint32_t free_node;	/* first of chain */
	uint32_t fresh;		/* nodes from here on were never used */
	uint32_t *node_of;	/* [n_pages] NONE: no node's page */
	uint32_t *bucket;	/* [n_buckets] first of chain */
	uint32_t n_buckets;	/* a power of two */
	uint64_t key;		/* so that nobody can aim at one bucket */

	uint32_t *free_slot;	/* [n_slots]; the first n_free_slot are free */
	uint32_t n_free_slot;
	struct dcpd_move *move;	/* [n_move] not done yet */
	uint32_t n_move, cap_move;
	uint32_t *leaving;	/* [n_slots] 1 + index of the move that fills
				   the slot, 0: none */
};

static int
alloc(struct dcpd_prefix *t)
{
	/* Zeroed by the kernel: memory is used as nodes are. */
	t->node = calloc(t->n, sizeof *t->node);
	t->tokens = calloc(t->n, TOKENS * sizeof *t->tokens);
	t->node_of = malloc(t->n_pages * sizeof *t->node_of);
	t->bucket = malloc(t->n_buckets * sizeof *t->bucket);
	t->free_slot = malloc((t->n_slots + 1) * sizeof *t->free_slot);
	t->leaving = calloc(t->n_slots + 1, sizeof *t->leaving);
	return t->node == NULL || t->tokens == NULL || t->node_of == NULL ||
	    t->bucket == NULL || t->free_slot == NULL || t->leaving == NULL ?
	    -ENOMEM : 0;
}

static void
destroy(struct dcpd_prefix *t)
{
	free(t->move);
	free(t->leaving);
	free(t->free_slot);
	free(t->bucket);
	free(t->node_of);
	free(t->tokens);
	free(t->node);
	free(t);
}

int
dcpd_prefix_new(struct dcpd_pages *pages, uint32_t n, uint32_t slots,
    struct dcpd_prefix **out)
{
	struct dcpd_prefix *t;

	if (n == 0 || n >= NONE / 4 || slots >= NONE / 4)
		return -EINVAL;
	t = calloc(1, sizeof *t);
	if (t == NULL)
		return -ENOMEM;
	t->n_pages = n;
	t->n_slots = slots;
	t->n = n + slots;
	t->n_buckets = 16;
	while (t->n_buckets < t->n)
		t->n_buckets *= 2;
	if (alloc(t) != 0) {
		destroy(t);
		return -ENOMEM;
	}
	memset(t->bucket, 0xff, t->n_buckets * sizeof *t->bucket);
	memset(t->node_of, 0xff, n * sizeof *t->node_of);
	for (uint32_t i = 0; i < slots; i++)
		t->free_slot[i] = slots - 1 - i;
	t->n_free_slot = slots;
	/* Without randomness only the defence is weaker. */
	if (getrandom(&t->key, sizeof t->key, GRND_NONBLOCK) !=
	    sizeof t->key)
		t->key = dcpd_now_ns();
	t->magic = PREFIX_MAGIC;
	t->pages = pages;
	t->free_node = NONE;
	t->idle = t->host = (struct list){ NONE, NONE, 0 };
	*out = t;
	return 0;
}

void
dcpd_prefix_free(struct dcpd_prefix *t)
{
	if (t == NULL)
		return;
	DCPD_CHECK(t, PREFIX_MAGIC);
	dcpd_prefix_drop(t);
	DCPD_ASSERT(t->n_pool == 0 && t->n_host == 0);
	t->magic = 0;
	destroy(t);
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

/* The node of these tokens after the text of parent; NONE. */
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
unchain(struct dcpd_prefix *t, uint32_t i)
{
	const struct node *nd = &t->node[i];
	uint32_t *p = bucket_of(t, nd->salt, nd->parent,
	    t->tokens + (size_t)i * TOKENS);

	while (*p != i)
		p = &t->node[*p].chain;
	*p = nd->chain;
}

/* The node that a request's table names, NONE for NO_PAGE. */
static uint32_t
node_at(const struct dcpd_prefix *t, uint32_t page)
{
	return page == NONE ? NONE : t->node_of[page];
}

/* --- nodes come and go ------------------------------------------------- */

static void
push(struct dcpd_prefix *t, struct list *l, uint32_t i)
{
	struct node *nd = &t->node[i];

	DCPD_ASSERT(nd->list == NULL);
	nd->list = l;
	nd->older = l->newest;
	nd->newer = NONE;
	if (l->newest != NONE)
		t->node[l->newest].newer = i;
	else
		l->oldest = i;
	l->newest = i;
	l->n++;
}

static void
unlist(struct dcpd_prefix *t, uint32_t i)
{
	struct node *nd = &t->node[i];
	struct list *l = nd->list;

	if (l == NULL)
		return;
	if (nd->older != NONE)
		t->node[nd->older].newer = nd->newer;
	else
		l->oldest = nd->newer;
	if (nd->newer != NONE)
		t->node[nd->newer].older = nd->older;
	else
		l->newest = nd->older;
	nd->list = NULL;
	l->n--;
}

static uint32_t
take_node(struct dcpd_prefix *t)
{
	uint32_t i = t->free_node;

	if (i == NONE)
		return t->fresh++;
	t->free_node = t->node[i].chain;
	return i;
}

/* It has neither page nor slot any more, and no children. */
static void
forget(struct dcpd_prefix *t, uint32_t i)
{
	struct node *nd = &t->node[i];

	DCPD_ASSERT(nd->children == 0 && nd->list == NULL);
	unchain(t, i);
	if (nd->parent != NONE)
		t->node[nd->parent].children--;
	free(nd->salt);
	*nd = (struct node){ .page = NONE, .slot = NONE,
	    .chain = t->free_node };
	t->free_node = i;
}

static void
give_page(struct dcpd_prefix *t, uint32_t i, uint32_t page)
{
	struct node *nd = &t->node[i];

	nd->page = page;
	nd->serial = ++t->serial;
	t->node_of[page] = i;
	t->n_pool++;
	if (nd->parent != NONE)
		t->node[nd->parent].in_pool++;
	dcpd_pages_ref(t->pages, page);		/* the tree's own */
}

static void
take_page(struct dcpd_prefix *t, uint32_t i)
{
	struct node *nd = &t->node[i];

	DCPD_ASSERT(nd->in_pool == 0);
	t->node_of[nd->page] = NONE;
	t->n_pool--;
	if (nd->parent != NONE)
		t->node[nd->parent].in_pool--;
	dcpd_pages_put(t->pages, &nd->page, 1);
	nd->page = NONE;
}

/* --- host memory ------------------------------------------------------- */

static bool
room_for_moves(struct dcpd_prefix *t, uint32_t n)
{
	uint32_t cap = 2 * (t->n_move + n);
	struct dcpd_move *v;

	if (t->cap_move - t->n_move >= n)
		return true;
	v = realloc(t->move, cap * sizeof *v);
	if (v == NULL)
		return false;
	t->move = v;
	t->cap_move = cap;
	return true;
}

/* Whatever was to be put into it need not be any more. */
static void
take_slot(struct dcpd_prefix *t, uint32_t i)
{
	uint32_t slot = t->node[i].slot;

	if (t->leaving[slot] != 0)
		t->move[t->leaving[slot] - 1].page = NONE;
	t->leaving[slot] = 0;
	t->free_slot[t->n_free_slot++] = slot;
	t->node[i].slot = NONE;
	t->n_host--;
}

static void
drop_host(struct dcpd_prefix *t, uint32_t i)
{
	unlist(t, i);
	take_slot(t, i);
	forget(t, i);
}

/* An idle page that is a leaf of the pool; false: there is no room for it. */
static bool
to_host(struct dcpd_prefix *t, uint32_t i)
{
	struct node *nd = &t->node[i];

	if (t->n_free_slot == 0 && t->host.n > 0)
		drop_host(t, t->host.oldest);
	if (t->n_free_slot == 0 || !room_for_moves(t, 1))
		return false;
	nd->slot = t->free_slot[--t->n_free_slot];
	t->move[t->n_move++] = (struct dcpd_move){ nd->page, nd->slot, true };
	t->leaving[nd->slot] = t->n_move;
	t->n_host++;
	take_page(t, i);
	push(t, &t->host, i);
	return true;
}

/* What lies behind it in host memory goes first: leaves, one by one. */
static void
drop_behind(struct dcpd_prefix *t, uint32_t i)
{
	while (t->node[i].children > 0)
		drop_host(t, t->host.oldest);
}

uint32_t
dcpd_prefix_evict(struct dcpd_prefix *t, uint32_t n)
{
	uint32_t k = 0, i;

	DCPD_CHECK(t, PREFIX_MAGIC);
	for (; k < n && t->idle.n > 0; k++) {
		i = t->idle.oldest;
		DCPD_ASSERT(t->node[i].in_pool == 0);
		unlist(t, i);
		t->n_evicted++;
		if (to_host(t, i))
			continue;
		drop_behind(t, i);
		take_page(t, i);
		forget(t, i);
	}
	return k;
}

uint32_t
dcpd_prefix_drop(struct dcpd_prefix *t)
{
	uint32_t n = t->idle.n + t->host.n, i;

	DCPD_CHECK(t, PREFIX_MAGIC);
	while (t->host.n > 0)
		drop_host(t, t->host.oldest);
	while (t->idle.n > 0) {
		i = t->idle.oldest;
		unlist(t, i);
		take_page(t, i);
		forget(t, i);
	}
	return n;
}

/* How many nodes of host memory go on from parent; taken off their list. */
static uint32_t
take_run(struct dcpd_prefix *t, const char *salt, const uint32_t *tokens,
    uint32_t from, uint32_t to, uint32_t parent, uint32_t *run)
{
	uint32_t n = 0, i;

	for (; from + n < to; n++) {
		i = find(t, salt, parent,
		    tokens + (size_t)(from + n) * TOKENS);
		if (i == NONE || t->node[i].slot == NONE)
			break;
		unlist(t, i);
		run[n] = parent = i;
	}
	return n;
}

uint32_t
dcpd_prefix_restore(struct dcpd_prefix *t, const char *salt,
    const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t most,
    uint32_t *table, bool *more)
{
	uint32_t free = dcpd_pages_n_free(t->pages), n, now, k, page, i;
	uint32_t *run = table + from;
	int rc;

	DCPD_CHECK(t, PREFIX_MAGIC);
	*more = false;
	if (t->host.n == 0 || from >= to)
		return from;
	to = (uint32_t)dcpd_min64(to, (uint64_t)from + free + t->idle.n);
	/* The table's own room names the nodes, until they have pages. */
	n = take_run(t, salt, tokens, from, to, from == 0 ? NONE :
	    t->node_of[table[from - 1]], run);
	now = n < most ? n : most;
	/* Room first: it may send others out, but not these, which are on no
	   list; nor what they come from, which the caller holds. */
	if (now > free)
		dcpd_prefix_evict(t, now - free);
	for (k = 0; k < now && room_for_moves(t, 1); k++) {
		i = run[k];
		rc = dcpd_pages_get(t->pages, 1, &page);
		DCPD_ASSERT(rc == 0);
		t->move[t->n_move++] = (struct dcpd_move){
			page, t->node[i].slot, false };
		t->leaving[t->node[i].slot] = 0;	/* if it leaves yet, it
							   must: it returns */
		take_slot(t, i);
		give_page(t, i, page);
		run[k] = page;
	}
	*more = k == now && n > now;
	for (uint32_t rest = n; rest > k; rest--)	/* leaf first */
		push(t, &t->host, run[rest - 1]);
	return from + k;
}

const struct dcpd_move *
dcpd_prefix_moves(const struct dcpd_prefix *t, uint32_t *n)
{
	*n = t->n_move;
	return t->move;
}

void
dcpd_prefix_moved(struct dcpd_prefix *t)
{
	for (uint32_t i = 0; i < t->n_move; i++)
		t->leaving[t->move[i].slot] = 0;
	t->n_move = 0;
}

/* --- for requests ------------------------------------------------------ */

uint32_t
dcpd_prefix_match(const struct dcpd_prefix *t, const char *salt,
    const uint32_t *tokens, uint32_t from, uint32_t to, uint32_t *table)
{
	uint32_t i = from, nd = from == 0 ? NONE : t->node_of[table[from - 1]];

	DCPD_CHECK(t, PREFIX_MAGIC);
	for (; i < to; i++) {
		nd = find(t, salt, nd, tokens + (size_t)i * TOKENS);
		if (nd == NONE || t->node[nd].page == NONE)
			break;
		table[i] = t->node[nd].page;
	}
	return i;
}

uint64_t
dcpd_prefix_serial(const struct dcpd_prefix *t, uint32_t page)
{
	return t->node_of[page] == NONE ? 0 : t->node[t->node_of[page]].serial;
}

void
dcpd_prefix_hold(struct dcpd_prefix *t, const uint32_t *table, uint32_t n)
{
	DCPD_CHECK(t, PREFIX_MAGIC);
	for (uint32_t i = 0; i < n; i++) {
		DCPD_ASSERT(table[i] < t->n_pages &&
		    t->node_of[table[i]] != NONE);
		unlist(t, t->node_of[table[i]]);
		dcpd_pages_ref(t->pages, table[i]);
	}
}

/* The text is known: page is freed, or, where it is in host memory only,
   takes that one's place. Returns the page of the text. */
static uint32_t
join(struct dcpd_prefix *t, uint32_t i, uint32_t page)
{
	uint32_t there = t->node[i].page;

	if (there == NONE) {
		unlist(t, i);
		take_slot(t, i);
		give_page(t, i, page);
		return page;
	}
	dcpd_prefix_hold(t, &there, 1);
	dcpd_pages_put(t->pages, &page, 1);
	return there;
}

uint32_t
dcpd_prefix_add(struct dcpd_prefix *t, const char *salt, uint32_t parent,
    const uint32_t *tokens, uint32_t page)
{
	uint32_t up = node_at(t, parent), i = find(t, salt, up, tokens), *b;
	char *own = NULL;

	DCPD_CHECK(t, PREFIX_MAGIC);
	DCPD_ASSERT(page < t->n_pages && t->node_of[page] == NONE &&
	    dcpd_pages_refs(t->pages, page) == 1);
	if (i != NONE)
		return join(t, i, page);
	if (up == NONE && salt != NULL && (own = strdup(salt)) == NULL)
		return NONE;
	b = bucket_of(t, salt, up, tokens);
	i = take_node(t);
	t->node[i] = (struct node){
		.page = NONE, .slot = NONE, .parent = up, .chain = *b,
		.older = NONE, .newer = NONE, .salt = own,
	};
	*b = i;
	memcpy(t->tokens + (size_t)i * TOKENS, tokens,
	    TOKENS * sizeof *tokens);
	if (up != NONE)
		t->node[up].children++;
	give_page(t, i, page);
	return page;
}

void
dcpd_prefix_release(struct dcpd_prefix *t, const uint32_t *table, uint32_t n)
{
	DCPD_CHECK(t, PREFIX_MAGIC);
	/* Leaf first: a node is older than its parent. */
	while (n-- > 0) {
		DCPD_ASSERT(t->node_of[table[n]] != NONE &&
		    dcpd_pages_refs(t->pages, table[n]) > 1);
		dcpd_pages_put(t->pages, &table[n], 1);
		if (dcpd_pages_refs(t->pages, table[n]) == 1)
			push(t, &t->idle, t->node_of[table[n]]);
	}
}

uint32_t
dcpd_prefix_n_idle(const struct dcpd_prefix *t)
{
	return t->idle.n;
}

uint32_t
dcpd_prefix_n_nodes(const struct dcpd_prefix *t)
{
	return t->n_pool;
}

uint32_t
dcpd_prefix_n_host(const struct dcpd_prefix *t)
{
	return t->n_host;
}

uint64_t
dcpd_prefix_n_evicted(const struct dcpd_prefix *t)
{
	return t->n_evicted;
}

uint32_t
dcpd_prefix_idle_of(const struct dcpd_prefix *t, const uint32_t *table,
    uint32_t n)
{
	uint32_t idle = 0;

	for (uint32_t i = 0; i < n; i++)
		idle += t->node[t->node_of[table[i]]].list != NULL;
	return idle;
}

/* --- the invariant ----------------------------------------------------- */

static bool
used(const struct dcpd_prefix *t, uint32_t i)
{
	return i < t->fresh &&
	    (t->node[i].page != NONE || t->node[i].slot != NONE);
}

static int
check_pool_node(const struct dcpd_prefix *t, uint32_t i, struct dcpd_err *err)
{
	const struct node *nd = &t->node[i], *up;
	uint32_t refs = dcpd_pages_refs(t->pages, nd->page);

	if (refs == 0 || (nd->list == &t->idle) != (refs == 1))
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u has %u "
		    "references and is %sidle", nd->page, refs,
		    nd->list == &t->idle ? "" : "not ");
	if (nd->slot != NONE || t->node_of[nd->page] != i)
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u is of node "
		    "%u, which has slot %u too", nd->page, t->node_of[nd->page],
		    nd->slot);
	if (nd->parent == NONE)
		return 0;
	up = &t->node[nd->parent];
	/* A request that holds a node holds its parents. */
	if (up->page == NONE || dcpd_pages_refs(t->pages, up->page) < refs)
		return dcpd_fail(err, -EUCLEAN, "prefix: page %u has %u "
		    "references, its parent %u fewer", nd->page, refs,
		    nd->parent);
	return 0;
}

static int
check_node(const struct dcpd_prefix *t, uint32_t i, struct dcpd_err *err)
{
	const struct node *nd = &t->node[i];

	if (find(t, nd->salt, nd->parent,
	    t->tokens + (size_t)i * TOKENS) != i)
		return dcpd_fail(err, -EUCLEAN, "prefix: node %u is not found "
		    "by its tokens", i);
	if (nd->parent != NONE && !used(t, nd->parent))
		return dcpd_fail(err, -EUCLEAN, "prefix: node %u has parent "
		    "%u, which is no node", i, nd->parent);
	if (nd->page != NONE)
		return check_pool_node(t, i, err);
	if (nd->list != &t->host)
		return dcpd_fail(err, -EUCLEAN, "prefix: node %u has a slot "
		    "and is not listed", i);
	return 0;
}

/* count [n][2]: children and those in the pool, counted and compared. */
static int
check_counts(const struct dcpd_prefix *t, uint32_t (*count)[2],
    struct dcpd_err *err)
{
	uint32_t pool = 0, host = 0;

	for (uint32_t i = 0; i < t->fresh; i++) {
		const struct node *nd = &t->node[i];

		pool += nd->page != NONE;
		host += nd->slot != NONE;
		if (!used(t, i) || nd->parent == NONE)
			continue;
		count[nd->parent][0]++;
		count[nd->parent][1] += nd->page != NONE;
	}
	for (uint32_t i = 0; i < t->fresh; i++)
		if (used(t, i) && (count[i][0] != t->node[i].children ||
		    count[i][1] != t->node[i].in_pool))
			return dcpd_fail(err, -EUCLEAN, "prefix: node %u has "
			    "%u children, %u in the pool; %u and %u say so", i,
			    t->node[i].children, t->node[i].in_pool,
			    count[i][0], count[i][1]);
	return pool == t->n_pool && host == t->n_host &&
	    host + t->n_free_slot == t->n_slots ? 0 : dcpd_fail(err, -EUCLEAN,
	    "prefix: %u nodes in the pool, counted %u; %u in host memory, "
	    "counted %u, %u of %u slots free", t->n_pool, pool, t->n_host,
	    host, t->n_free_slot, t->n_slots);
}

/* count [n][2] as counted: children come before their parent. */
static int
check_list(const struct dcpd_prefix *t, const struct list *l,
    uint32_t (*count)[2], struct dcpd_err *err)
{
	uint32_t n = 0, before = NONE, k = l == &t->idle;

	for (uint32_t i = l->oldest; i != NONE; i = t->node[i].newer) {
		if (t->node[i].list != l || t->node[i].older != before ||
		    n++ >= t->n)
			return dcpd_fail(err, -EUCLEAN, "prefix: the list of "
			    "%s pages is broken at node %u", k ? "idle" :
			    "host", i);
		if (count[i][k] != 0)
			return dcpd_fail(err, -EUCLEAN, "prefix: node %u goes "
			    "before %u of its children", i, count[i][k]);
		if (t->node[i].parent != NONE)
			count[t->node[i].parent][k]--;
		before = i;
	}
	return n == l->n && l->newest == before ? 0 : dcpd_fail(err,
	    -EUCLEAN, "prefix: %u %s pages, counted %u", l->n, k ? "idle" :
	    "host", n);
}

int
dcpd_prefix_check(const struct dcpd_prefix *t, struct dcpd_err *err)
{
	uint32_t (*count)[2];
	int rc = 0;

	DCPD_CHECK(t, PREFIX_MAGIC);
	count = calloc(t->fresh + 1, sizeof *count);
	if (count == NULL)
		return dcpd_fail(err, -ENOMEM, "prefix: out of memory");
	for (uint32_t i = 0; i < t->fresh && rc == 0; i++)
		if (used(t, i))
			rc = check_node(t, i, err);
	if (rc == 0)
		rc = check_counts(t, count, err);
	if (rc == 0)
		rc = check_list(t, &t->idle, count, err);
	if (rc == 0)
		rc = check_list(t, &t->host, count, err);
	free(count);
	return rc;
}
