/*
 * The scalar pieces of prim.h: conversions, norms, RoPE, quantisation, the
 * LSE merge, the router, and the choice of the instruction set. Any thread;
 * no state but the constant tables.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/cpu/prim.h"

#define E4M3_MAX 448.0f

/* --- choice ------------------------------------------------------------ */

static bool
isa_usable(const struct dcpc_prims *p)
{
	if (p == &dcpc_portable)
		return true;
#ifdef __x86_64__
	unsigned a, b, c, d;

	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
	    !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
		return false;
	return p == &dcpc_avx2 || (__builtin_cpu_supports("avx512f") &&
	    __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512dq"));
#else
	return false;
#endif
}

const struct dcpc_prims *
dcpc_prims_pick(void)
{
	static const struct dcpc_prims *const all[] = {	/* best first */
#ifdef __x86_64__
		&dcpc_avx512, &dcpc_avx2,
#endif
		&dcpc_portable
	};
	const char *want = getenv("DCPD_CPU_ISA");
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(*all); i++)
		if ((want == NULL || strcmp(want, all[i]->isa) == 0) &&
		    isa_usable(all[i]))
			return all[i];
	return NULL;
}

/* --- number formats ---------------------------------------------------- */

#define E4(m, e) (float)(m) * (1.0f / 512) * (float)(1u << (e))
/* Eight values that share an exponent; s is +-1, exponent field e >= 1. */
#define E4ROW(s, e) \
	s E4(8, e - 1), s E4(9, e - 1), s E4(10, e - 1), s E4(11, e - 1), \
	s E4(12, e - 1), s E4(13, e - 1), s E4(14, e - 1), s E4(15, e - 1)
#define E4HALF(s) \
	s E4(0, 0), s E4(1, 0), s E4(2, 0), s E4(3, 0), \
	s E4(4, 0), s E4(5, 0), s E4(6, 0), s E4(7, 0), \
	E4ROW(s, 1), E4ROW(s, 2), E4ROW(s, 3), E4ROW(s, 4), E4ROW(s, 5), \
	E4ROW(s, 6), E4ROW(s, 7), E4ROW(s, 8), E4ROW(s, 9), E4ROW(s, 10), \
	E4ROW(s, 11), E4ROW(s, 12), E4ROW(s, 13), E4ROW(s, 14), \
	s E4(8, 14), s E4(9, 14), s E4(10, 14), s E4(11, 14), \
	s E4(12, 14), s E4(13, 14), s E4(14, 14), NAN

const float dcpc_e4m3[256] = { E4HALF(), E4HALF(-) };

uint8_t
dcpc_f32_to_e4m3(float x)
{
	uint32_t u, sign, mag;
	float f;

	memcpy(&u, &x, 4);
	sign = u >> 24 & 0x80;
	mag = u & 0x7fffffff;
	if (mag > 0x7f800000)
		return (uint8_t)(sign | 0x7f);
	if (mag >= 0x43e00000)			/* 448 */
		return (uint8_t)(sign | 0x7e);
	if (mag < 0x3c800000) {			/* 2^-6: multiples of 2^-9 */
		memcpy(&f, &mag, 4);
		f += 16384.0f;			/* whose last place is 2^-9 */
		memcpy(&u, &f, 4);
		return (uint8_t)(sign | (u & 0xff));
	}
	/* Nearest even at 20 bits, then the exponent's bias from 127 to 7. */
	mag += 0x7ffff + (mag >> 20 & 1);
	return (uint8_t)(sign | ((mag - (120u << 23)) >> 20));
}

uint16_t
dcpc_f32_to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float
dcpc_bf16_to_f32(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

/* --- quantisation ------------------------------------------------------ */

static float
amax(const float *x, uint32_t n)
{
	float m = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
	return m;
}

/* x/scale in e4m3; all zero bytes for scale 0. */
static void
to_e4m3(uint8_t *dst, const float *x, uint32_t n, float scale)
{
	uint32_t i;

	if (scale == 0) {
		memset(dst, 0, n);
		return;
	}
	for (i = 0; i < n; i++)
		dst[i] = dcpc_f32_to_e4m3(x[i] / scale);
}

void
dcpc_pack_row(void *dst, enum dcpk_kv fmt, const float *ckv, const float *kpe,
    uint32_t c, uint32_t r)
{
	uint8_t *d = dst;
	uint16_t b;
	uint32_t i;
	float scale;

	if (fmt == DCPK_KV_F32) {
		memcpy(d, ckv, (size_t)c * 4);
		memcpy(d + (size_t)c * 4, kpe, (size_t)r * 4);
		return;
	}
	if (fmt == DCPK_KV_FP8) {
		for (i = 0; i < c / 128; i++) {
			scale = amax(ckv + i * 128, 128) / E4M3_MAX;
			to_e4m3(d + i * 128, ckv + i * 128, 128, scale);
			memcpy(d + c + i * 4, &scale, 4);
		}
		d += c + c / 128 * 4;
	} else {
		for (i = 0; i < c; i++, d += 2) {
			b = dcpc_f32_to_bf16(ckv[i]);
			memcpy(d, &b, 2);
		}
	}
	for (i = 0; i < r; i++, d += 2) {
		b = dcpc_f32_to_bf16(kpe[i]);
		memcpy(d, &b, 2);
	}
}

void
dcpc_pack_key(void *dst, float *scale, enum dcpk_kv fmt, const float *k,
    uint32_t dim)
{
	uint16_t *b = dst;
	uint32_t i;

	*scale = 1;
	if (fmt == DCPK_KV_F32) {
		memcpy(dst, k, (size_t)dim * 4);
	} else if (fmt == DCPK_KV_BF16) {
		for (i = 0; i < dim; i++)
			b[i] = dcpc_f32_to_bf16(k[i]);
	} else {
		*scale = amax(k, dim) / E4M3_MAX;
		to_e4m3(dst, k, dim, *scale);
	}
}

float
dcpc_quant_e4m3(float *x, uint32_t n)
{
	float scale = amax(x, n) / E4M3_MAX;
	uint32_t i;

	for (i = 0; i < n; i++)
		x[i] = scale == 0 ? 0 :
		    dcpc_e4m3[dcpc_f32_to_e4m3(x[i] / scale)];
	return scale;
}

void
dcpc_quant_act_static(float *x, uint32_t n, float scale)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		x[i] = scale * dcpc_e4m3[dcpc_f32_to_e4m3(x[i] / scale)];
}

void
dcpc_quant_act(float *x, uint32_t n, uint32_t block, bool ue8m0)
{
	uint32_t i, m;
	float scale, a;
	int e;

	for (i = 0; i < n; i += m) {
		m = n - i < block ? n - i : block;
		a = amax(x + i, m);
		if (ue8m0) {
			/* up to 2^e; a fraction of exactly 1/2 is one */
			a = frexpf((a > 1e-4f ? a : 1e-4f) / E4M3_MAX, &e);
			scale = ldexpf(1, a > 0.5f ? e : e - 1);
		} else {
			scale = a / E4M3_MAX;
		}
		if (scale == 0)
			memset(x + i, 0, m * sizeof(*x));
		else
			dcpc_quant_act_static(x + i, m, scale);
	}
}

void
dcpc_wire_round(float *x, uint32_t n, enum dcpk_wire wire)
{
	uint32_t i;

	if (wire == DCPK_WIRE_FP8)
		dcpc_quant_act(x, n, DCPK_WIRE_TILE, false);
	for (i = 0; wire == DCPK_WIRE_BF16 && i < n; i++)
		x[i] = dcpc_bf16_to_f32(dcpc_f32_to_bf16(x[i]));
}

/* --- norms and rotations ----------------------------------------------- */

void
dcpc_layernorm(float *y, const float *x, const float *w, const float *b,
    uint32_t n, float eps)
{
	double mean = 0, var = 0;
	uint32_t i;
	float r;

	for (i = 0; i < n; i++)
		mean += x[i];
	mean /= n;
	for (i = 0; i < n; i++)
		var += (x[i] - mean) * (x[i] - mean);
	r = (float)(1 / sqrt(var / n + eps));
	for (i = 0; i < n; i++)
		y[i] = (float)(x[i] - mean) * r * w[i] + b[i];
}

void
dcpc_rope(float *x, const float *cos, const float *sin, uint32_t r,
    bool interleave)
{
	float odd[128], a, b;
	uint32_t i, h = r / 2;

	if (!interleave) {
		for (i = 0; i < h; i++) {
			a = x[i];
			b = x[i + h];
			x[i] = a * cos[i] - b * sin[i];
			x[i + h] = b * cos[i] + a * sin[i];
		}
		return;
	}
	for (i = 0; i < h; i++) {	/* writes x[i] after reading x[2i] */
		a = x[2 * i];
		b = x[2 * i + 1];
		x[i] = a * cos[i] - b * sin[i];
		odd[i] = b * cos[i] + a * sin[i];
	}
	memcpy(x + h, odd, h * sizeof(*x));
}

void
dcpc_rope_table(float *cos, float *sin, uint32_t pos, const float *inv,
    uint32_t r, float factor)
{
	uint32_t i;
	float angle;

	for (i = 0; i < r / 2; i++) {
		angle = (float)pos * inv[i];
		cos[i] = cosf(angle) * factor;
		sin[i] = sinf(angle) * factor;
	}
}

void
dcpc_hadamard(float *x, uint32_t n)
{
	uint32_t len, i, j;
	float a, b, s = 1 / sqrtf((float)n);

	for (len = 1; len < n; len *= 2)
		for (i = 0; i < n; i += 2 * len)
			for (j = i; j < i + len; j++) {
				a = x[j];
				b = x[j + len];
				x[j] = a + b;
				x[j + len] = a - b;
			}
	for (i = 0; i < n; i++)
		x[i] *= s;
}

/* --- merge ------------------------------------------------------------- */

/* NaN and +inf mark a broken or empty part just as -inf does. */
static bool
part_counts(float lse)
{
	return lse > -INFINITY && lse < INFINITY;
}

static void
merge_head(float *o, float *lse, const float *const *po,
    const float *const *plse, uint32_t parts, uint32_t h, uint32_t c)
{
	const float *src;
	float max = -INFINITY, sum = 0, w;
	uint32_t p, i;

	for (p = 0; p < parts; p++)
		if (part_counts(plse[p][h]) && plse[p][h] > max)
			max = plse[p][h];
	memset(o, 0, c * sizeof(*o));
	*lse = -INFINITY;
	if (max == -INFINITY)
		return;
	for (p = 0; p < parts; p++)
		if (part_counts(plse[p][h]))
			sum += expf(plse[p][h] - max);
	for (p = 0; p < parts; p++) {
		if (!part_counts(plse[p][h]))
			continue;
		w = expf(plse[p][h] - max) / sum;
		if (w == 0)		/* 0 * NaN is not 0 */
			continue;
		src = po[p] + (size_t)h * c;
		for (i = 0; i < c; i++)
			o[i] += w * src[i];
	}
	*lse = max + logf(sum);
}

void
dcpc_merge(float *o, float *lse, const float *const *po,
    const float *const *plse, uint32_t parts, uint32_t heads, uint32_t c)
{
	uint32_t h;

	for (h = 0; h < heads; h++)
		merge_head(o + (size_t)h * c, lse + h, po, plse, parts, h, c);
}

size_t
dcpc_attend_tmp(uint32_t heads, uint32_t c, uint32_t r)
{
	/* As attend() in prim_body.h lays out: keys; per head probabilities,
	 * maximum, sum, factor. */
	return DCPC_ATTEND_KEYS * (((size_t)c + r + 15) / 16 * 16) +
	    (size_t)heads * (DCPC_ATTEND_KEYS + 3);
}

/* --- router ------------------------------------------------------------ */

/* Index of the largest ch[i], i < n, lowest index on ties; NaN never wins. */
static uint32_t
arg_max(const float *ch, uint32_t n)
{
	uint32_t i, best = 0;

	for (i = 1; i < n; i++)
		if (ch[i] > ch[best] || (ch[best] != ch[best] &&
		    ch[i] == ch[i]))
			best = i;
	return best;
}

/* Sum of the two largest. */
static float
group_score(const float *ch, uint32_t n)
{
	float a = -INFINITY, b = -INFINITY;
	uint32_t i;

	if (n == 1)
		return ch[0];
	for (i = 0; i < n; i++) {
		if (ch[i] > a) {
			b = a;
			a = ch[i];
		} else if (ch[i] > b) {
			b = ch[i];
		}
	}
	return a + b;
}

/* Leaves only the experts of the kept groups in ch; gs [groups]. */
static void
keep_groups(float *ch, float *gs, const struct dcpk_model *m)
{
	const uint32_t n = m->experts / m->groups;
	uint32_t g, i, best;

	for (g = 0; g < m->groups; g++)
		gs[g] = group_score(ch + g * n, n);
	for (i = 0; i < m->groups_kept; i++) {
		best = arg_max(gs, m->groups);
		gs[best] = NAN;		/* taken */
	}
	for (g = 0; g < m->groups; g++)
		for (i = 0; gs[g] == gs[g] && i < n; i++)
			ch[g * n + i] = -INFINITY;
}

static float
sigmoid(float x)
{
	return 1 / (1 + expf(-x));
}

void
dcpc_route(uint32_t *ids, float *w, const float *logits, const float *bias,
    const struct dcpk_model *m, float *tmp)
{
	float *ch = tmp, sum = 0;
	uint32_t i;

	for (i = 0; i < m->experts; i++)
		ch[i] = sigmoid(logits[i]) + bias[i];
	if (m->groups > 1 && m->groups_kept < m->groups)
		keep_groups(ch, tmp + m->experts, m);
	for (i = 0; i < m->experts_tok; i++) {
		ids[i] = arg_max(ch, m->experts);
		ch[ids[i]] = NAN;	/* taken */
		w[i] = sigmoid(logits[ids[i]]);
		sum += w[i];
	}
	for (i = 0; i < m->experts_tok; i++)
		w[i] = (m->norm_topk ? w[i] / (sum + 1e-20f) : w[i]) *
		    m->routed_scale;
}

void
dcpc_pack_mat(void *dst, const void *src, uint32_t n, uint32_t k, bool bf16)
{
	const size_t el = bf16 ? 2 : 4;
	const char *s = src;
	char *d = dst;
	uint32_t t, p, i;

	for (t = 0; t < n; t += DCPC_PACK)
		for (p = 0; p < k; p++)
			for (i = 0; i < DCPC_PACK; i++, d += el)
				memcpy(d, s + ((size_t)(t + i) * k + p) * el,
				    el);
}
