/*
 * The arithmetic of prim.h for x86 with AVX-512 F, BW, VL and DQ. The target
 * is set here and not on the command line, see prim_avx2.c.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/prim.h"

#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#include "kernels/cpu/prim_avx.h"

#define PRIMS dcpc_avx512
#define PRIMS_NAME "avx512"
#define VN 16u
#define HR 4u
#define VR 4u
#define GEMM_MR 6u
#define GEMM_TILES(X) X(6, 4) X(4, 4) X(2, 8) X(1, 8)
#define PACKED_MR 6u
#define PACKED_TR 4u
#define PACKED_TR1 8u

typedef __m512 vf;

static inline vf
v_set1(float x)
{
	return _mm512_set1_ps(x);
}

static inline vf
v_zero(void)
{
	return _mm512_setzero_ps();
}

static inline vf
v_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

static inline void
v_store(float *p, vf v)
{
	_mm512_storeu_ps(p, v);
}

/* The first n lanes. */
static inline __mmask16
first(uint32_t n)
{
	return (__mmask16)((1u << n) - 1);
}

static inline vf
v_load_n(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps(first(n), p);
}

static inline void
v_store_n(float *p, vf v, uint32_t n)
{
	_mm512_mask_storeu_ps(p, first(n), v);
}

static inline vf
widen_bf16(__m256i b)
{
	return _mm512_castsi512_ps(_mm512_slli_epi32(
	    _mm512_cvtepu16_epi32(b), 16));
}

static inline vf
v_load_bf16(const uint16_t *p)
{
	return widen_bf16(_mm256_loadu_si256(
	    (const __m256i *)(const void *)p));
}

static inline vf
v_load_bf16_n(const uint16_t *p, uint32_t n)
{
	return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
}

/* As load8_e4m3 does. */
static inline vf
widen_e4m3(__m128i bytes)
{
	__m256i b = _mm256_cvtepu8_epi16(bytes);
	__m256i mag = _mm256_and_si256(b, _mm256_set1_epi16(0x7f));
	__mmask16 nan = _mm256_cmpeq_epi16_mask(mag, _mm256_set1_epi16(0x7f));
	__m256i half = _mm256_or_si256(_mm256_slli_epi16(mag, 7),
	    _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), b),
	    8));

	half = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00));
	return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
}

static inline vf
v_load_e4m3(const uint8_t *p)
{
	return widen_e4m3(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vf
v_load_e4m3_n(const uint8_t *p, uint32_t n)
{
	return widen_e4m3(_mm_maskz_loadu_epi8(first(n), p));
}

static inline vf
v_add(vf a, vf b)
{
	return _mm512_add_ps(a, b);
}

static inline vf
v_sub(vf a, vf b)
{
	return _mm512_sub_ps(a, b);
}

static inline vf
v_mul(vf a, vf b)
{
	return _mm512_mul_ps(a, b);
}

static inline vf
v_div(vf a, vf b)
{
	return _mm512_div_ps(a, b);
}

static inline vf
v_fma(vf a, vf b, vf c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* A NaN in b is kept. */
static inline vf
v_max(vf a, vf b)
{
	return _mm512_max_ps(a, b);
}

static inline vf
v_min(vf a, vf b)
{
	return _mm512_min_ps(a, b);
}

/* v, but 0 where x < lo. */
static inline vf
v_zero_below(vf v, vf x, vf lo)
{
	return _mm512_maskz_mov_ps((__mmask16)~_mm512_cmp_ps_mask(x, lo,
	    _CMP_LT_OQ), v);
}

/* 2^n, n in the low bits of t (see v_exp). */
static inline vf
v_exp2i(vf t)
{
	return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(
	    _mm512_castps_si512(t), 23), _mm512_set1_epi32(0x3f800000)));
}

static inline float
v_hsum(vf v)
{
	__m256 h = _mm256_add_ps(_mm512_castps512_ps256(v),
	    _mm512_extractf32x8_ps(v, 1));
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(h),
	    _mm256_extractf128_ps(h, 1));

	s = _mm_hadd_ps(s, s);
	return _mm_cvtss_f32(_mm_hadd_ps(s, s));
}

/* Four at once, by the same tree: halves, quarters, neighbours, pairs. */
static inline void
v_hsum4(float *sum, const vf *v)
{
	vf a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44),
	    _mm512_shuffle_f32x4(v[0], v[1], 0xee));
	vf b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44),
	    _mm512_shuffle_f32x4(v[2], v[3], 0xee));

	a = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88),
	    _mm512_shuffle_f32x4(a, b, 0xdd));
	a = _mm512_add_ps(a, _mm512_permute_ps(a, 0xb1));
	a = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e));
	_mm_storeu_ps(sum, _mm512_castps512_ps128(
	    _mm512_maskz_compress_ps(0x1111, a)));
}

#include "kernels/cpu/prim_body.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
