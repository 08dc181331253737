/*
 * The vector arithmetic of prim.h, written once. prim_portable.c, prim_avx2.c
 * and prim_avx512.c define the vector type `vf` of VN floats with its v_*
 * operations and the tile shapes, then include this file; it ends in the
 * definition of their struct dcpc_prims. Any thread; no state.
 *
 * The order of every sum, which no tile may change:
 *  gemm	in blocks of GEMM_K columns, one block after the other. Within
 *		one, lane l of an accumulator takes k = l, l+VN, l+2*VN, ...;
 *		then v_hsum adds the lanes, always in the same tree.
 *		Packed weights: k from 0, one output a lane.
 *  attend	the dot products as gemm; o sums the keys in list order.
 *  index_scores	a dot product goes through dim from 0; heads from 0.
 * A tile only says how many such sums are in flight. Tails of a row are
 * loaded as zeros, which adds 0*0 to a lane: the same in every tile.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/prim.h"

/*
 * Columns of x and w summed in registers before they are added to y (8 rows of
 * x are 32 KB), and rows of w that share a pass over x (1 MB in f32; a
 * multiple of every tile's width).
 */
#define GEMM_K 1024u
#define GEMM_N 240u

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* --- exp --------------------------------------------------------------- */

/*
 * e^x, relative error below 2e-7; 0 below the normal range, no infinity above
 * it (x is clamped at 88.37); NaN stays. x = n ln2 + r; adding 1.5*2^23
 * rounds to an integer and leaves n in the low bits of the sum.
 */
INLINE vf
v_exp(vf x)
{
	const vf lo = v_set1(-87.33654f), magic = v_set1(12582912.0f);
	vf c, t, n, r, p;

	c = v_min(v_set1(88.37626f), v_max(lo, x));
	t = v_fma(c, v_set1(1.44269504f), magic);
	n = v_sub(t, magic);
	r = v_fma(n, v_set1(-0.693359375f), c);
	r = v_fma(n, v_set1(2.12194440e-4f), r);
	p = v_set1(1.9875691500e-4f);
	p = v_fma(p, r, v_set1(1.3981999507e-3f));
	p = v_fma(p, r, v_set1(8.3334519073e-3f));
	p = v_fma(p, r, v_set1(4.1665795894e-2f));
	p = v_fma(p, r, v_set1(1.6666665459e-1f));
	p = v_fma(p, r, v_set1(5.0000001201e-1f));
	p = v_add(v_fma(v_mul(r, r), p, r), v_set1(1.0f));
	return v_zero_below(v_mul(p, v_exp2i(t)), x, lo);
}

/* --- gemm -------------------------------------------------------------- */

INLINE vf
load_w(const void *w, size_t at, bool bf16)
{
	return bf16 ? v_load_bf16((const uint16_t *)w + at) :
	    v_load((const float *)w + at);
}

INLINE vf
load_w_n(const void *w, size_t at, uint32_t n, bool bf16)
{
	return bf16 ? v_load_bf16_n((const uint16_t *)w + at, n) :
	    v_load_n((const float *)w + at, n);
}

/* Not again from memory: the compiler may not fold the load into its uses. */
#ifdef __x86_64__
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) ((void)0)
#endif

/*
 * mr rows of x by nr rows of w over k columns: mr*nr accumulators, which must
 * fit the register file. mr, nr and bf16 are constants after inlining.
 */
INLINE void
gemm_tile(float *y, size_t ldy, const float *x, size_t ldx, const void *w,
    size_t ldw, uint32_t k, bool add, bool bf16, uint32_t mr, uint32_t nr)
{
	vf acc[32], a, b[8];
	float sum[32];
	uint32_t i, j, p;

	UNROLL for (i = 0; i < mr * nr; i++)
		acc[i] = v_zero();
	for (p = 0; p + VN <= k; p += VN) {
		UNROLL for (j = 0; mr < 6 && j < nr; j++)
			__builtin_prefetch((const char *)w +
			    (j * ldw + p) * (bf16 ? 2 : 4) + 1024);
		UNROLL for (j = 0; j < nr; j++)
			b[j] = load_w(w, j * ldw + p, bf16);
		UNROLL for (i = 0; i < mr; i++) {
			a = v_load(x + i * ldx + p);
			KEEP(a);
			UNROLL for (j = 0; j < nr; j++)
				acc[i * nr + j] = v_fma(a, b[j],
				    acc[i * nr + j]);
		}
	}
	if (p < k) {
		UNROLL for (j = 0; j < nr; j++)
			b[j] = load_w_n(w, j * ldw + p, k - p, bf16);
		UNROLL for (i = 0; i < mr; i++) {
			a = v_load_n(x + i * ldx + p, k - p);
			UNROLL for (j = 0; j < nr; j++)
				acc[i * nr + j] = v_fma(a, b[j],
				    acc[i * nr + j]);
		}
	}
	UNROLL for (i = 0; i + 4 <= mr * nr; i += 4)
		v_hsum4(sum + i, acc + i);
	UNROLL for (i = mr * nr / 4 * 4; i < mr * nr; i++)
		sum[i] = v_hsum(acc[i]);
	for (i = 0; i < mr; i++, y += ldy)
		for (j = 0; j < nr; j++)
			y[j] = add ? y[j] + sum[i * nr + j] : sum[i * nr + j];
}

/* The tile over all of k, or over one block of it. */
INLINE void
gemm_blocks(float *y, size_t ldy, const float *x, size_t ldx,
    const struct dcpc_mat *w, uint32_t j, uint32_t k0, uint32_t k1, bool add,
    uint32_t mr, uint32_t nr)
{
	const size_t size = w->bf16 ? 2 : 4;
	const char *d = (const char *)w->data + j * w->ld * size;
	uint32_t k = k0, n;

	do {
		n = k1 - k < GEMM_K ? k1 - k : GEMM_K;
		if (w->bf16)
			gemm_tile(y + j, ldy, x + k, ldx, d + k * size, w->ld,
			    n, add || k > 0, true, mr, nr);
		else
			gemm_tile(y + j, ldy, x + k, ldx, d + k * size, w->ld,
			    n, add || k > 0, false, mr, nr);
		k += n;
	} while (k < k1);
}

/* mr rows of x by columns n0..n1 of w over k0..k1. */
#define GEMM_STRIP(mr, nr) \
static void \
gemm_strip_##mr(float *y, size_t ldy, const float *x, size_t ldx, \
    const struct dcpc_mat *w, uint32_t n0, uint32_t n1, uint32_t k0, \
    uint32_t k1, bool add) \
{ \
	uint32_t j = n0; \
\
	for (; j + (nr) <= n1; j += (nr)) \
		gemm_blocks(y, ldy, x, ldx, w, j, k0, k1, add, mr, nr); \
	for (; j < n1; j++) \
		gemm_blocks(y, ldy, x, ldx, w, j, k0, k1, add, mr, 1); \
}
GEMM_TILES(GEMM_STRIP)

/* All rows of x by columns n0..n1 over k0..k1, in tiles of rows. */
static void
gemm_rows(float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
    const struct dcpc_mat *w, uint32_t n0, uint32_t n1, uint32_t k0,
    uint32_t k1, bool add)
{
	uint32_t i = 0;

#define GEMM_ROWS(mr, nr) \
	for (; i + (mr) <= m; i += (mr)) \
		gemm_strip_##mr(y + i * ldy, ldy, x + i * ldx, ldx, w, n0, \
		    n1, k0, k1, add);
	GEMM_TILES(GEMM_ROWS)
}

/* --- gemm with packed weights ------------------------------------------ */

#define PV (DCPC_PACK / VN)	/* vectors of a tile's row */

/*
 * mr rows of x by tr tiles of 16 columns over all of k, in order of k: mr*tr*PV
 * accumulators. Every output has its own lane, so there is no last sum.
 */
INLINE void
packed_tile(float *y, size_t ldy, const float *x, size_t ldx, const void *w,
    size_t tile, uint32_t k, bool add, bool bf16, uint32_t mr, uint32_t tr)
{
	vf acc[32], b[16], s;
	uint32_t i, v, p;

	UNROLL for (i = 0; i < mr * tr * PV; i++)
		acc[i] = v_zero();
	for (p = 0; p < k; p++) {
		UNROLL for (v = 0; v < tr * PV; v++)
			b[v] = load_w(w, v / PV * tile + p * DCPC_PACK +
			    v % PV * VN, bf16);
		UNROLL for (i = 0; i < mr; i++) {
			s = v_set1(x[i * ldx + p]);
			UNROLL for (v = 0; v < tr * PV; v++)
				acc[i * tr * PV + v] = v_fma(s, b[v],
				    acc[i * tr * PV + v]);
		}
	}
	UNROLL for (i = 0; i < mr; i++)
		UNROLL for (v = 0; v < tr * PV; v++) {
			float *to = y + i * ldy + v * VN;

			v_store(to, add ? v_add(v_load(to),
			    acc[i * tr * PV + v]) : acc[i * tr * PV + v]);
		}
}

/* tr tiles of columns from column j: all rows, so the weights stay cached. */
#define PACKED_COLS(mr, tr) \
	for (; i + (mr) <= m; i += (mr)) { \
		if (w->bf16) \
			packed_tile(y + i * ldy + j, ldy, x + i * ldx, ldx, \
			    d, w->ld * DCPC_PACK, w->k, add, true, mr, tr); \
		else \
			packed_tile(y + i * ldy + j, ldy, x + i * ldx, ldx, \
			    d, w->ld * DCPC_PACK, w->k, add, false, mr, tr); \
	}

static void
gemm_packed(float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
    const struct dcpc_mat *w, uint32_t n0, uint32_t n1, bool add)
{
	const size_t size = w->bf16 ? 2 : 4;
	const char *d;
	uint32_t i, j = n0;

	/* One row: as many sums in flight as hide an addition's latency. */
	for (; m == 1 && n1 - j >= PACKED_TR1 * DCPC_PACK;
	    j += PACKED_TR1 * DCPC_PACK) {
		d = (const char *)w->data + j * w->ld * size;
		i = 0;
		PACKED_COLS(1, PACKED_TR1)
	}
	for (; n1 - j >= PACKED_TR * DCPC_PACK; j += PACKED_TR * DCPC_PACK) {
		d = (const char *)w->data + j * w->ld * size;
		i = 0;
		PACKED_COLS(PACKED_MR, PACKED_TR)
		PACKED_COLS(1, PACKED_TR)
	}
	for (; j < n1; j += DCPC_PACK) {
		d = (const char *)w->data + j * w->ld * size;
		i = 0;
		PACKED_COLS(PACKED_MR, 1)
		PACKED_COLS(1, 1)
	}
}

/*
 * Few rows: the weights pass by once, row after row, as memory likes it. Many
 * rows: a tile's rows of x stay in the L1 cache for one block of k, and the
 * columns' part of that block in L2 while all rows pass by.
 */
static void
gemm(float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
    const struct dcpc_mat *w, uint32_t n0, uint32_t n1, bool add)
{
	uint32_t k0, k1, j0, j1;

	if (w->packed) {
		gemm_packed(y, ldy, x, ldx, m, w, n0, n1, add);
		return;
	}
	if (m <= GEMM_MR || w->k <= VN) {
		gemm_rows(y, ldy, x, ldx, m, w, n0, n1, 0, w->k, add);
		return;
	}
	for (j0 = n0; j0 < n1; j0 = j1) {
		j1 = n1 - j0 > GEMM_N ? j0 + GEMM_N : n1;
		for (k0 = 0; k0 < w->k; k0 = k1) {
			k1 = w->k - k0 > GEMM_K ? k0 + GEMM_K : w->k;
			gemm_rows(y, ldy, x, ldx, m, w, j0, j1, k0, k1, add);
		}
	}
}

/* --- products with broadcast: sums over the rows of b, in order -------- */

/*
 * acc[h][v] += sum_p a[h*lda + p] * b[p*ldb + v*stride ...], p < n. Used by
 * index_scores (p = dim, b = packed tiles) and attend (p = key, b = latents).
 */
INLINE void
bcast_tile(vf acc[8][8], const float *a, size_t lda, const float *b,
    size_t ldb, size_t stride, uint32_t n, uint32_t hr, uint32_t vr)
{
	vf s, x[8];
	uint32_t p, h, v;

	for (p = 0; p < n; p++) {
		UNROLL for (v = 0; v < vr; v++)
			x[v] = v_load(b + p * ldb + v * stride);
		UNROLL for (h = 0; h < hr; h++) {
			s = v_set1(a[h * lda + p]);
			UNROLL for (v = 0; v < vr; v++)
				acc[h][v] = v_fma(s, x[v], acc[h][v]);
		}
	}
}

/* --- attend ------------------------------------------------------------ */

#define ATTEND_KEYS DCPC_ATTEND_KEYS

static void
unpack_row(float *dst, enum dcpk_kv fmt, const void *src, uint32_t c,
    uint32_t r)
{
	const uint8_t *s = src;
	float scale;
	uint32_t i, t;

	if (fmt == DCPK_KV_F32) {
		memcpy(dst, src, (size_t)(c + r) * 4);
		return;
	}
	i = 0;
	if (fmt == DCPK_KV_FP8) {
		for (t = 0; t < c / 128; t++) {
			memcpy(&scale, s + c + t * 4, 4);
			for (i = t * 128; i < (t + 1) * 128; i += VN)
				v_store(dst + i, v_mul(v_load_e4m3(s + i),
				    v_set1(scale)));
		}
		dst += c;
		s += c + c / 128 * 4;
		c = 0;
	}
	for (i = 0; i + VN <= c + r; i += VN)
		v_store(dst + i, v_load_bf16((const uint16_t *)
		    (const void *)s + i));
	if (i < c + r)
		v_store_n(dst + i, v_load_bf16_n((const uint16_t *)
		    (const void *)s + i, c + r - i), c + r - i);
}

/* o[h][v..] = o*keep[h] + sum_b p[h][b] * key[b][v..] for hr heads. */
INLINE void
attend_sum(float *o, uint32_t c, const float *keep, const float *p,
    const float *key, size_t ld, uint32_t nb, uint32_t hr)
{
	vf acc[8][8];
	uint32_t v = 0, h, u;

	for (; v + VR * VN <= c; v += VR * VN) {
		UNROLL for (h = 0; h < hr; h++)
			UNROLL for (u = 0; u < VR; u++)
				acc[h][u] = v_mul(v_set1(keep[h]),
				    v_load(o + h * c + v + u * VN));
		bcast_tile(acc, p, ATTEND_KEYS, key + v, ld, VN, nb, hr, VR);
		UNROLL for (h = 0; h < hr; h++)
			UNROLL for (u = 0; u < VR; u++)
				v_store(o + h * c + v + u * VN, acc[h][u]);
	}
	for (; v < c; v += VN) {
		u = c - v < VN ? c - v : VN;
		UNROLL for (h = 0; h < hr; h++)
			acc[h][0] = v_mul(v_set1(keep[h]), u == VN ?
			    v_load(o + h * c + v) :
			    v_load_n(o + h * c + v, u));
		/* Key rows are padded, so a whole vector may be read. */
		bcast_tile(acc, p, ATTEND_KEYS, key + v, ld, VN, nb, hr, 1);
		UNROLL for (h = 0; h < hr; h++)
			v_store_n(o + h * c + v, acc[h][0], u);
	}
}

/*
 * One head's nb scores s become e^(s - max), where max includes the keys
 * before; *keep is what the sums so far must be multiplied by.
 */
INLINE void
softmax_block(float *s, uint32_t nb, float scale, float *max, float *sum,
    float *keep)
{
	float m = *max, e[VN];
	vf t, v;
	uint32_t i;

	for (i = 0; i < nb; i++) {
		s[i] *= scale;
		m = s[i] > m ? s[i] : m;
	}
	*keep = 1;
	if (m > *max) {
		v_store(e, v_exp(v_set1(*max - m)));
		*keep = e[0];
		*max = m;
	}
	t = v_zero();
	for (i = 0; i < nb; i += VN) {
		v = v_exp(v_sub(v_load(s + i), v_set1(m)));
		v_store(s + i, v);
		t = v_add(t, nb - i >= VN ? v : v_load_n(s + i, nb - i));
	}
	*sum = *sum * *keep + v_hsum(t);
}

INLINE size_t
attend_ld(uint32_t c, uint32_t r)
{
	return ((size_t)c + r + 15) / 16 * 16;
}

static void
attend(float *o, float *lse, const float *q, uint32_t heads,
    const struct dcpc_rows *rows, const uint32_t *list, uint32_t n,
    float scale, float *tmp)
{
	const uint32_t c = rows->c, r = rows->r;
	const size_t ld = attend_ld(c, r);
	const size_t bytes = dcpk_row_bytes(rows->fmt, c, r);
	float *key = tmp, *p = key + ATTEND_KEYS * ld;
	float *max = p + (size_t)heads * ATTEND_KEYS;
	float *sum = max + heads, *keep = sum + heads;
	struct dcpc_mat mat = { key, 0, c + r, ld, false, false };
	uint32_t b, i, h, nb;

	memset(o, 0, (size_t)heads * c * sizeof(*o));
	for (h = 0; h < heads; h++) {
		max[h] = -INFINITY;
		sum[h] = 0;
	}
	for (b = 0; b < n; b += nb) {
		nb = n - b < ATTEND_KEYS ? n - b : ATTEND_KEYS;
		for (i = 0; i < nb; i++)
			unpack_row(key + i * ld, rows->fmt,
			    (const char *)rows->data + list[b + i] * bytes,
			    c, r);
		mat.n = nb;
		gemm(p, ATTEND_KEYS, q, c + r, heads, &mat, 0, nb, false);
		for (h = 0; h < heads; h++)
			softmax_block(p + h * ATTEND_KEYS, nb, scale, max + h,
			    sum + h, keep + h);
		for (h = 0; h + HR <= heads; h += HR)
			attend_sum(o + h * c, c, keep + h,
			    p + h * ATTEND_KEYS, key, ld, nb, HR);
		for (; h < heads; h++)
			attend_sum(o + h * c, c, keep + h,
			    p + h * ATTEND_KEYS, key, ld, nb, 1);
	}
	for (h = 0; h < heads; h++) {
		lse[h] = max[h] + logf(sum[h]);	/* of nothing: -inf */
		for (i = 0; n > 0 && i < c; i++)
			o[h * c + i] /= sum[h];
	}
}

/* --- index keys -------------------------------------------------------- */

INLINE float *
packed_at(float *packed, uint32_t place, uint32_t dim)
{
	return packed + (size_t)(place / 16) * dim * 16 + place % 16;
}

/* One key to one place; dst [dim][16]. */
static void
pack1(float *dst, const char *src, enum dcpk_kv fmt, uint32_t dim)
{
	float buf[VN];
	uint32_t d, l, u;
	vf v;

	for (d = 0; d < dim; d += VN) {
		u = dim - d < VN ? dim - d : VN;
		if (fmt == DCPK_KV_FP8)
			v = v_load_e4m3_n((const uint8_t *)src + d, u);
		else
			v = load_w_n(src, d, u, fmt == DCPK_KV_BF16);
		v_store(buf, v);
		for (l = 0; l < u; l++)
			dst[(d + l) * 16] = buf[l];
	}
}

static void
index_pack(float *packed, float *kscale, uint32_t at, uint32_t step,
    const struct dcpc_keys *keys, uint32_t row0, uint32_t n)
{
	const uint32_t dim = keys->dim;
	const size_t bytes = (size_t)dim * (keys->fmt == DCPK_KV_F32 ? 4 :
	    keys->fmt == DCPK_KV_BF16 ? 2 : 1);
	const char *src = (const char *)keys->data + row0 * bytes;
	uint32_t i;

	for (i = 0; i < n; i++)
		kscale[at + i * step] = keys->fmt == DCPK_KV_FP8 ?
		    keys->scale[row0 + i] : 1.0f;
	i = 0;
	while (i < n) {
#ifdef HAVE_PACK8
		if (step == 1 && (at + i) % 8 == 0 && n - i >= 8 &&
		    dim % 8 == 0) {
			pack8(packed_at(packed, at + i, dim), src + i * bytes,
			    bytes, keys->fmt, dim);
			i += 8;
			continue;
		}
#endif
		pack1(packed_at(packed, at + i * step, dim), src + i * bytes,
		    keys->fmt, dim);
		i++;
	}
}

/*
 * hr heads against vr vectors of keys (a tile is 16/VN of them): adds each
 * head's share to s. `stride` is the distance in floats between vectors.
 */
INLINE void
score_tile(vf s[8], const float *q, const float *w, uint32_t dim,
    const float *packed, size_t stride, uint32_t hr, uint32_t vr)
{
	vf acc[8][8];
	uint32_t h, v;

	UNROLL for (h = 0; h < hr; h++)
		UNROLL for (v = 0; v < vr; v++)
			acc[h][v] = v_zero();
	bcast_tile(acc, q, dim, packed, 16, stride, dim, hr, vr);
	UNROLL for (h = 0; h < hr; h++)
		UNROLL for (v = 0; v < vr; v++)
			s[v] = v_fma(v_set1(w[h]), v_max(v_zero(),
			    acc[h][v]), s[v]);
}

INLINE void
score_keys(float *out, const float *q, const float *w, uint32_t heads,
    uint32_t dim, const float *packed, const float *kscale, size_t stride,
    uint32_t vr)
{
	vf s[8];
	uint32_t h, v;

	UNROLL for (v = 0; v < vr; v++)
		s[v] = v_zero();
	for (h = 0; h + HR <= heads; h += HR)
		score_tile(s, q + (size_t)h * dim, w + h, dim, packed, stride,
		    HR, vr);
	for (; h < heads; h++)
		score_tile(s, q + (size_t)h * dim, w + h, dim, packed, stride,
		    1, vr);
	UNROLL for (v = 0; v < vr; v++)
		v_store(out + v * VN, v_mul(v_load(kscale + v * VN), s[v]));
}

/* VR vectors at a time, either of one tile or one of each of VR tiles. */
static void
index_scores(float *s, const float *q, const float *w, uint32_t heads,
    uint32_t dim, const float *packed, const float *kscale, uint32_t n)
{
	const size_t tile = (size_t)dim * 16;
	uint32_t j = 0;

#if VN == 16
	for (; j + VR * 16 <= n; j += VR * 16)
		score_keys(s + j, q, w, heads, dim, packed + j / 16 * tile,
		    kscale + j, tile, VR);
	for (; j < n; j += 16)
		score_keys(s + j, q, w, heads, dim, packed + j / 16 * tile,
		    kscale + j, tile, 1);
#else
	for (; j < n; j += 16)
		score_keys(s + j, q, w, heads, dim, packed + j / 16 * tile,
		    kscale + j, VN, 16 / VN);
#endif
}

/* --- the small ones ---------------------------------------------------- */

static void
rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
	vf t = v_zero(), v, r;
	uint32_t i, u;

	for (i = 0; i < n; i += VN) {
		u = n - i < VN ? n - i : VN;
		v = u == VN ? v_load(x + i) : v_load_n(x + i, u);
		t = v_fma(v, v, t);
	}
	r = v_set1(1.0f / sqrtf(v_hsum(t) / (float)n + eps));
	for (i = 0; i + VN <= n; i += VN)
		v_store(y + i, v_mul(v_mul(v_load(x + i), r), v_load(w + i)));
	if (i < n)
		v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), r),
		    v_load_n(w + i, n - i)), n - i);
}

INLINE vf
v_silu(vf g)
{
	return v_div(g, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), g))));
}

static void
silu_mul(float *y, const float *gate, const float *up, size_t n)
{
	size_t i;
	uint32_t u;

	for (i = 0; i + VN <= n; i += VN)
		v_store(y + i, v_mul(v_silu(v_load(gate + i)),
		    v_load(up + i)));
	if (i < n) {
		u = (uint32_t)(n - i);
		v_store_n(y + i, v_mul(v_silu(v_load_n(gate + i, u)),
		    v_load_n(up + i, u)), u);
	}
}

static void
axpy(float *y, float a, const float *x, size_t n)
{
	const vf s = v_set1(a);
	size_t i;
	uint32_t u;

	for (i = 0; i + VN <= n; i += VN)
		v_store(y + i, v_fma(s, v_load(x + i), v_load(y + i)));
	if (i < n) {
		u = (uint32_t)(n - i);
		v_store_n(y + i, v_fma(s, v_load_n(x + i, u),
		    v_load_n(y + i, u)), u);
	}
}

#define FMA_ACCS 12	/* latency 4, two a cycle; and registers for them */

static float
fma_only(float x, uint32_t rounds)
{
	const vf half = v_set1(0.5f), step = v_set1(x);
	vf acc[FMA_ACCS], sum = v_zero();
	float out[VN];
	uint32_t i, j;

	for (j = 0; j < FMA_ACCS; j++)
		acc[j] = v_set1(x * (float)j);
	for (i = 0; i < rounds; i++)
		_Pragma("GCC unroll 12")
		for (j = 0; j < FMA_ACCS; j++)
			acc[j] = v_fma(acc[j], half, step);
	for (j = 0; j < FMA_ACCS; j++)
		sum = v_add(sum, acc[j]);
	v_store(out, sum);
	return out[0];
}

const struct dcpc_prims PRIMS = {
	.isa = PRIMS_NAME,
	.gemm = gemm,
	.attend = attend,
	.index_pack = index_pack,
	.index_scores = index_scores,
	.rmsnorm = rmsnorm,
	.silu_mul = silu_mul,
	.axpy = axpy,
	.fma = fma_only,
	.fma_round = FMA_ACCS * VN,
	.pack_row = dcpc_pack_row,
	.unpack_row = unpack_row,
};
