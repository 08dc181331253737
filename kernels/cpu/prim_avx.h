/*
 * What prim_avx2.c and prim_avx512.c share: eight values widened to f32, and
 * index keys packed eight at a time. Included after the target is set.
 */
#ifndef DCPC_PRIM_AVX_H
#define DCPC_PRIM_AVX_H

static inline __m256
load8_bf16(const void *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(
	    _mm_loadu_si128(p)), 16));
}

/*
 * e4m3 has fp16's layout with one exponent bit and seven mantissa bits fewer:
 * moved into place its value is 2^-8 of what it was, subnormals included.
 */
static inline __m256
load8_e4m3(const void *p)
{
	const __m128i low = _mm_set1_epi16(0x7f);
	__m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64(p));
	__m128i mag = _mm_and_si128(b, low);
	__m128i nan = _mm_cmpeq_epi16(mag, low);
	__m128i half = _mm_or_si128(_mm_slli_epi16(mag, 7),
	    _mm_slli_epi16(_mm_andnot_si128(low, b), 8));

	half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
	return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}

/* Rows become columns: pairs, quads, then halves change places. */
static inline void
transpose8(__m256 r[8])
{
	__m256 a[8], b[8];
	int i;

#define AVX_UNROLL _Pragma("GCC unroll 8")
	AVX_UNROLL for (i = 0; i < 4; i++) {
		a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
		a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
	}
	AVX_UNROLL for (i = 0; i < 8; i += 4) {
		b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
		b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
		b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
		b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
	}
	AVX_UNROLL for (i = 0; i < 4; i++) {
		r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
		r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
	}
}

/*
 * Eight keys, `bytes` apart, to eight neighbouring places of one tile; dst
 * [dim][16] at the first place. dim is a multiple of 8.
 */
static void
pack8(float *dst, const char *src, size_t bytes, enum dcpk_kv fmt,
    uint32_t dim)
{
	__m256 r[8];
	uint32_t d, i;

	for (d = 0; d < dim; d += 8) {
		AVX_UNROLL for (i = 0; i < 8; i++)
			r[i] = fmt == DCPK_KV_FP8 ?
			    load8_e4m3(src + i * bytes + d) :
			    fmt == DCPK_KV_BF16 ?
			    load8_bf16(src + i * bytes + d * 2) :
			    _mm256_loadu_ps((const float *)(const void *)
			    (src + i * bytes) + d);
		transpose8(r);
		AVX_UNROLL for (i = 0; i < 8; i++)
			_mm256_storeu_ps(dst + (size_t)(d + i) * 16, r[i]);
	}
}
#define HAVE_PACK8 1

#endif
