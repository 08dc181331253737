/*
 * From logits to one token and its logprobs; prim.h says in which order.
 * Any thread; the caller gives the workspace. One thread per sample.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/prim.h"

#define INSERT_MAX 32u		/* top logprobs that are kept by insertion */

/*
 * A binary heap of token ids, best first by (z desc, id asc). Candidates are
 * taken only as far as the draw needs, most of the vocabulary stays unsorted.
 */
struct heap {
	const float *z;		/* [V] adjusted logits */
	uint32_t *id;		/* [n] */
	uint32_t n;
};

size_t
dcpc_sample_ws(uint32_t V)
{
	return (size_t)V * (sizeof(float) + sizeof(uint32_t));
}

static bool
better(const float *z, uint32_t a, uint32_t b)
{
	return z[a] > z[b] || (z[a] == z[b] && a < b);
}

static void
sift_down(struct heap *h, uint32_t i)
{
	uint32_t c, id = h->id[i];

	while ((c = 2 * i + 1) < h->n) {
		if (c + 1 < h->n && better(h->z, h->id[c + 1], h->id[c]))
			c++;
		if (!better(h->z, h->id[c], id))
			break;
		h->id[i] = h->id[c];
		i = c;
	}
	h->id[i] = id;
}

static void
heap_make(struct heap *h)
{
	uint32_t i;

	for (i = h->n / 2; i-- > 0;)
		sift_down(h, i);
}

/* The best moves to the place that the heap gives up, id[n] after the call. */
static uint32_t
heap_pop(struct heap *h)
{
	uint32_t best = h->id[0];

	h->id[0] = h->id[--h->n];
	h->id[h->n] = best;
	if (h->n > 0)
		sift_down(h, 0);
	return best;
}

static bool
allowed(const uint32_t *bits, uint32_t id)
{
	return bits == NULL || (bits[id / 32] >> id % 32 & 1);
}

/* splitmix64's finaliser. */
static uint64_t
mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Uniform in [0, 1), 53 bits, of (seed, index) alone. */
static double
uniform(uint64_t seed, uint32_t index)
{
	uint64_t x = mix(seed + UINT64_C(0x9e3779b97f4a7c15));

	x = mix(x + (index + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15));
	return (double)(x >> 11) * 0x1p-53;
}

/* --- logprobs of the model's own logits -------------------------------- */

static double
log_sum_exp(const float *z, uint32_t V)
{
	float max = -INFINITY;
	double sum = 0;
	uint32_t i;

	for (i = 0; i < V; i++)
		max = z[i] > max ? z[i] : max;
	if (max == -INFINITY || max == INFINITY)
		return max;
	for (i = 0; i < V; i++)
		if (z[i] == z[i])
			sum += expf(z[i] - max);
	return max + log(sum);
}

static float
logprob_of(float z, double lse)
{
	return z == z && z > -INFINITY ? (float)(z - lse) : -INFINITY;
}

/* Into top, best first; returns how many there are. */
static uint32_t
best_by_insertion(struct dcpk_logprob *top, uint32_t n, const float *z,
    uint32_t V)
{
	uint32_t i, j, have = 0;

	for (i = 0; i < V && n > 0; i++) {
		if (z[i] != z[i] || (have == n && z[i] <= top[n - 1].logprob))
			continue;
		j = have < n ? have++ : n - 1;
		for (; j > 0 && top[j - 1].logprob < z[i]; j--)
			top[j] = top[j - 1];
		top[j] = (struct dcpk_logprob){ i, z[i] };
	}
	return have;
}

static uint32_t
best_by_heap(struct dcpk_logprob *top, uint32_t n, const float *z, uint32_t V,
    uint32_t *ids)
{
	struct heap h = { .z = z, .id = ids };
	uint32_t i, id, have;

	for (i = 0; i < V; i++)
		if (z[i] == z[i])
			h.id[h.n++] = i;
	heap_make(&h);
	have = n < h.n ? n : h.n;
	for (i = 0; i < have; i++) {
		id = heap_pop(&h);
		top[i] = (struct dcpk_logprob){ id, z[id] };
	}
	return have;
}

/*
 * The n best of the raw logits. Insertion is quickest for the few that are
 * usual, but a client may ask for the whole vocabulary, which would then hold
 * up everybody's step. ids: [V] scratch.
 */
static void
best_logprobs(struct dcpk_logprob *top, uint32_t n, const float *z,
    uint32_t V, double lse, uint32_t *ids)
{
	uint32_t i, have = n <= INSERT_MAX ? best_by_insertion(top, n, z, V) :
	    best_by_heap(top, n, z, V, ids);

	for (i = 0; i < n; i++)
		top[i] = i < have ? (struct dcpk_logprob){ top[i].token,
		    logprob_of(top[i].logprob, lse) } :
		    (struct dcpk_logprob){ DCPK_NOPOS, -INFINITY };
}

/* --- the choice -------------------------------------------------------- */

/* Logits after bias and penalties into z; banned tokens become -inf. */
static void
adjust(float *z, const float *logits, uint32_t V, const struct dcpk_sample *s,
    const struct dcpk_adjust *adj, const uint32_t *token_ok,
    const uint32_t *mask)
{
	const struct dcpk_adjust *a;
	float *x;
	uint32_t i;

	memcpy(z, logits, (size_t)V * sizeof(*z));
	for (a = adj; a < adj + s->adjs; a++) {
		if (a->token >= V)
			continue;
		x = z + a->token;
		*x += a->bias;
		if (a->seen && s->repetition > 0)
			*x = *x > 0 ? *x / s->repetition : *x * s->repetition;
		if (a->out_count > 0)
			*x -= s->frequency * (float)a->out_count + s->presence;
	}
	for (i = 0; i < V; i++)
		if (z[i] != z[i] || !allowed(token_ok, i) || !allowed(mask, i))
			z[i] = -INFINITY;
}

static uint32_t
arg_best(const float *z, uint32_t V, const uint32_t *ok)
{
	uint32_t i, best = DCPK_NOPOS;

	for (i = 0; i < V; i++)
		if (z[i] > -INFINITY && allowed(ok, i) &&
		    (best == DCPK_NOPOS || z[i] > z[best]))
			best = i;
	return best;
}

/*
 * Biases and penalties have banned all that may be chosen. A mask still holds:
 * the best that it allows or, where no logit of those is a number, the first.
 */
static uint32_t
best_despite_bans(const float *logits, uint32_t V, const uint32_t *ok,
    const uint32_t *mask)
{
	uint32_t i, best = DCPK_NOPOS, first = DCPK_NOPOS;

	for (i = 0; i < V; i++) {
		if (!allowed(ok, i) || !allowed(mask, i))
			continue;
		if (first == DCPK_NOPOS)
			first = i;
		if (logits[i] > -INFINITY &&
		    (best == DCPK_NOPOS || logits[i] > logits[best]))
			best = i;
	}
	if (best == DCPK_NOPOS && mask != NULL)
		best = first;
	return best != DCPK_NOPOS ? best : arg_best(logits, V, ok);
}

/* Not normalised: 1 for the best. One function, so that sums agree. */
static double
weight(float z, float max, float temperature)
{
	return expf((z - max) / temperature);
}

/*
 * Takes candidates from the heap until top_k, top_p and min_p end it or, when
 * none of them is set, until the draw at u falls into one.
 */
static uint32_t
draw(struct heap *h, const struct dcpk_sample *s, float max, double total,
    double u)
{
	const uint32_t V = h->n;
	const uint32_t k = s->top_k > 0 && s->top_k < V ? s->top_k : V;
	const bool open = k == V && !(s->top_p < 1) && !(s->min_p > 0);
	double mass = 0, cum = 0, p, limit;
	uint32_t i, n = 0, id = 0;

	/* What top_p is a share of: all, or the k best. */
	for (total = k < V ? 0 : total; k < V && n < k; n++)
		total += weight(h->z[heap_pop(h)], max, s->temperature);
	limit = s->top_p < 1 ? s->top_p * total : INFINITY;
	for (i = 0; i < k; i++) {
		id = i < n ? h->id[V - 1 - i] : heap_pop(h);
		p = weight(h->z[id], max, s->temperature);
		if (i > 0 && (mass >= limit || p < s->min_p || p == 0))
			break;
		mass += p;
		if (open && mass > u * total)
			return id;
	}
	n = i;
	for (i = 0; i < n; i++) {
		id = h->id[V - 1 - i];
		cum += weight(h->z[id], max, s->temperature);
		if (cum > u * mass)
			break;
	}
	return id;
}

static uint32_t
choose(const float *logits, uint32_t V, const struct dcpk_sample *s,
    const struct dcpk_adjust *adj, const uint32_t *token_ok,
    const uint32_t *mask, void *ws)
{
	float *z = ws;
	struct heap h = { .z = z, .id = (uint32_t *)(void *)(z + V) };
	double total = 0;
	uint32_t i, best;

	adjust(z, logits, V, s, adj, token_ok, mask);
	best = arg_best(z, V, NULL);
	if (best == DCPK_NOPOS)
		best = best_despite_bans(logits, V, token_ok, mask);
	if (best == DCPK_NOPOS)
		return 0;
	if ((s->flags & DCPK_S_GREEDY) || !(s->temperature > 0) ||
	    z[best] == -INFINITY || z[best] == INFINITY)
		return best;
	for (i = 0; i < V; i++) {
		if (z[i] == -INFINITY)
			continue;
		h.id[h.n++] = i;
		total += weight(z[i], z[best], s->temperature);
	}
	heap_make(&h);
	return draw(&h, s, z[best], total, uniform(s->seed, s->index));
}

void
dcpc_sample(const float *logits, uint32_t V, const struct dcpk_sample *s,
    const struct dcpk_adjust *adj, const uint32_t *token_ok,
    const uint32_t *mask, struct dcpk_logprob *out, struct dcpk_logprob *top,
    void *ws)
{
	double lse = log_sum_exp(logits, V);

	out->token = s->flags & DCPK_S_SCORE ? s->given :
	    choose(logits, V, s, adj, token_ok, mask, ws);
	out->logprob = out->token < V ? logprob_of(logits[out->token], lse) :
	    -INFINITY;
	best_logprobs(top, s->n_top, logits, V, lse, ws);
}
