/*
 * The arithmetic of the CPU backend: pure functions on arrays, no state, any
 * thread. ops_*.c put them together into the operations of kernels.h.
 *
 * One rule everywhere: an output element is accumulated in one fixed order
 * that depends on its own inputs' sizes alone, never on the tile, the batch,
 * the number of rows in the call or the thread. So the same row gives the same
 * bits in any batch, chunk and layout. (Different instruction sets may differ.)
 */
#ifndef DCPC_PRIM_H
#define DCPC_PRIM_H

#include "kernels/kernels.h"

/*
 * Weights [n][k]: row j at data + j*ld. Packed: tiles of 16 rows, n a multiple
 * of 16, element (j, p) at data + (j/16*ld + p)*16 + j%16, so that a vector of
 * weights belongs to as many outputs and nothing is added across lanes.
 */
struct dcpc_mat {
	const void *data;	/* f32 or bf16 */
	uint32_t n, k;
	size_t ld;		/* elements */
	bool bf16, packed;
};
#define DCPC_PACK 16u
/* Rows [n][k], tight, into the packed order. */
void dcpc_pack_mat(void *dst, const void *src, uint32_t n, uint32_t k,
    bool bf16);

struct dcpc_rows {		/* pool or gather buffer of KV rows */
	const void *data;
	enum dcpk_kv fmt;
	uint32_t c, r;		/* kv_lora, rope */
};

struct dcpc_keys {		/* index keys */
	const void *data;	/* [row][dim] */
	const float *scale;	/* [row], fp8 only */
	enum dcpk_kv fmt;
	uint32_t dim;
};

/* Chosen once at start: "avx512", "avx2", "portable". */
struct dcpc_prims {
	const char *isa;
	/* y[i*ldy + j] (+)= sum_k x[i*ldx + k] w[j][k]; i < m, n0 <= j < n1 */
	void (*gemm)(float *y, size_t ldy, const float *x, size_t ldx,
	    uint32_t m, const struct dcpc_mat *w, uint32_t n0, uint32_t n1,
	    bool add);
	/*
	 * Attention of one query row over listed rows: q [heads][c+r],
	 * o [heads][c] normalised, lse [heads] natural log. n = 0: o 0,
	 * lse -inf. tmp: dcpc_attend_tmp() floats.
	 */
	void (*attend)(float *o, float *lse, const float *q, uint32_t heads,
	    const struct dcpc_rows *rows, const uint32_t *list, uint32_t n,
	    float scale, float *tmp);
	/*
	 * Index keys packed for scoring: tiles of 16 keys, [tile][dim][16] f32
	 * (fp8: the e4m3 values, scale apart). Puts `n` keys, source rows
	 * row0.., at packed places at, at+step, ...; kscale[place] gets the
	 * scale (1 unless fp8).
	 */
	void (*index_pack)(float *packed, float *kscale, uint32_t at,
	    uint32_t step, const struct dcpc_keys *keys, uint32_t row0,
	    uint32_t n);
	/*
	 * s[j] = kscale[j] * sum_h w[h] * max(q[h].k[j], 0), j < n; q
	 * [heads][dim]; w has every constant factor. s and packed are padded
	 * to whole tiles of 16: s[j], n <= j < padded, may be written.
	 */
	void (*index_scores)(float *s, const float *q, const float *w,
	    uint32_t heads, uint32_t dim, const float *packed,
	    const float *kscale, uint32_t n);
	void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n,
	    float eps);
	void (*silu_mul)(float *y, const float *gate, const float *up,
	    size_t n);			/* y = silu(gate) * up; y may be gate */
	void (*axpy)(float *y, float a, const float *x, size_t n);
	/*
	 * Nothing but multiply-adds on registers, `rounds` of fma_round of
	 * them that do not wait for each other: the best that can be had.
	 */
	float (*fma)(float x, uint32_t rounds);
	uint32_t fma_round;
	/* KV row in its pool format; dequantised again by unpack_row. */
	void (*pack_row)(void *dst, enum dcpk_kv fmt, const float *ckv,
	    const float *kpe, uint32_t c, uint32_t r);
	void (*unpack_row)(float *dst /*[c+r]*/, enum dcpk_kv fmt,
	    const void *src, uint32_t c, uint32_t r);
};
extern const struct dcpc_prims dcpc_portable, dcpc_avx2, dcpc_avx512;
/*
 * The best the CPU has; DCPD_CPU_ISA=portable|avx2|avx512 overrides. NULL if
 * that names another set or one that this CPU lacks.
 */
const struct dcpc_prims *dcpc_prims_pick(void);

#define DCPC_ATTEND_KEYS 64u	/* attend() dequantises so many at a time */
size_t dcpc_attend_tmp(uint32_t heads, uint32_t c, uint32_t r);	/* floats */

/* --- scalar pieces (prim.c) -------------------------------------------- */

void dcpc_pack_row(void *dst, enum dcpk_kv fmt, const float *ckv,
    const float *kpe, uint32_t c, uint32_t r);	/* of every table */

uint8_t dcpc_f32_to_e4m3(float);	/* nearest even, saturates at 448 */
extern const float dcpc_e4m3[256];	/* NaN at 0x7f, 0xff */
uint16_t dcpc_f32_to_bf16(float);	/* nearest even, NaN stays NaN */
float dcpc_bf16_to_f32(uint16_t);
void dcpc_layernorm(float *y, const float *x, const float *w, const float *b,
    uint32_t n, float eps);
/* In place on x[r]; cos, sin [r/2]. interleave: pairs (0,1),(2,3).. give
 * [evens | odds] as transformers does; else pairs (i, i+r/2). */
void dcpc_rope(float *x, const float *cos, const float *sin, uint32_t r,
    bool interleave);
void dcpc_rope_table(float *cos, float *sin, uint32_t pos, const float *inv,
    uint32_t r, float factor);	/* angle in f32, as transformers */
/* Orthonormal Hadamard transform in place, n a power of two. */
void dcpc_hadamard(float *x, uint32_t n);
/* Index key in pool format; *scale is amax/448 for fp8 (0 for a zero key). */
void dcpc_pack_key(void *dst, float *scale, enum dcpk_kv fmt, const float *k,
    uint32_t dim);
/* Quantise to e4m3 values (as floats) by amax/448; returns the scale. */
float dcpc_quant_e4m3(float *x, uint32_t n);
/* Fake quantisation in place: per 128 of n, as FP8 products see activations
 * (ue8m0: scale rounded up to a power of two), or by a static scale. */
void dcpc_quant_act(float *x, uint32_t n, uint32_t block, bool ue8m0);
void dcpc_quant_act_static(float *x, uint32_t n, float scale);
/* In place: one head's partial output as the rank that merges it gets it. */
void dcpc_wire_round(float *x, uint32_t n, enum dcpk_wire wire);

/*
 * The slice of a weight as f32 [n1-n0][k1-k0], row stride ld. -EINVAL if the
 * format's parts do not fit together; dst is untouched then. Scale rows and
 * columns are counted in whole blocks, the last may be partial. FP8_CHANNEL:
 * block_n 0 is one scale for all, 1 one for each row. INT4: block_k 0 is one
 * group for the whole row.
 */
int dcpc_dequant(float *dst, size_t ld, const struct dcpk_weight *w,
    struct dcpk_err *err);

/* A slice that dcpk_keeps_int4 as it is kept: dcpk_int4_bytes of it. By up to
 * so many threads, 0 = as many as there are cores, 16 at most. */
void dcpc_take_int4(uint8_t *out, const struct dcpk_weight *w,
    uint32_t threads);

/* LSE merge in rank order (doc/design.md 6): part p's o [heads][c], lse
 * [heads]. */
void dcpc_merge(float *o, float *lse, const float *const *po,
    const float *const *plse, uint32_t parts, uint32_t heads, uint32_t c);

/*
 * Router (doc/model.md 1.6): logits [E] -> ids and weights [K], ids by (score
 * desc, id asc). tmp [2*E].
 */
void dcpc_route(uint32_t *ids, float *w, const float *logits, const float *bias,
    const struct dcpk_model *m, float *tmp);

/* --- exact top-k over shards by threshold (topk.c, doc/design.md 5) ----- */

/*
 * scores[r][j], j < n[r], is the score of position j*D + r. The k largest by
 * (score desc, position asc) of all shards; NaN sorts below -inf, -0 = +0.
 * out[r] gets rank r's winners as local indices, ascending; out[r] has room
 * for min(k, n[r]). Only histogram sums, and the boundary bin once every
 * rank's share is at most the cap, cross ranks. Returns bytes that one rank
 * would have exchanged (for counters). ws: dcpc_topk_ws(D) bytes, aligned to 8.
 */
#define DCPC_TOPK_CAP 256u	/* pairs one rank exchanges at most */
size_t dcpc_topk_ws(uint32_t D);
uint32_t dcpc_topk(const float *const *scores, const uint32_t *n, uint32_t D,
    uint32_t k, uint32_t *const *out, uint32_t *count, void *ws);

/* --- sampling (sample.c) ----------------------------------------------- */

/*
 * logits [V], untouched. adj: this sample's own adjustments. token_ok, mask:
 * bitmasks or NULL. top gets s->n_top entries (past V: DCPK_NOPOS, -inf). ws:
 * dcpc_sample_ws(V) bytes, aligned to 4.
 *
 * Order: bias, repetition, frequency and presence, token_ok and mask; greedy
 * ends here (lowest id on ties; also temperature <= 0). Then temperature,
 * top_k (exactly k), top_p of what top_k left (a token stays while the mass
 * before it is less than top_p), min_p times the best. Then the inverse of
 * the distribution over the rest in (logit desc, id asc), at a point that
 * depends on (seed, index) alone. NaN logits count as -inf. If biases and
 * penalties have banned every token, the largest logit that token_ok and the
 * mask allow, where none of these is a number the mask's first; if there is no
 * such token, the largest that token_ok allows, or id 0.
 */
size_t dcpc_sample_ws(uint32_t V);
void dcpc_sample(const float *logits, uint32_t V, const struct dcpk_sample *s,
    const struct dcpk_adjust *adj, const uint32_t *token_ok,
    const uint32_t *mask, struct dcpk_logprob *out, struct dcpk_logprob *top,
    void *ws);

#endif
