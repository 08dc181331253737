/*
 * The arithmetic of prim.h for x86 with AVX2, FMA and F16C. The target is set
 * here and not on the command line, so that nothing else in the file's
 * includes can be compiled for it and shared with other files.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/prim.h"

#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "kernels/cpu/prim_avx.h"

#define PRIMS dcpc_avx2
#define PRIMS_NAME "avx2"
#define VN 8u
#define HR 4u
#define VR 2u
#define GEMM_MR 6u
#define GEMM_TILES(X) X(6, 2) X(4, 2) X(2, 4) X(1, 8)
#define PACKED_MR 3u
#define PACKED_TR 2u
#define PACKED_TR1 4u

typedef __m256 vf;

static inline vf
v_set1(float x)
{
	return _mm256_set1_ps(x);
}

static inline vf
v_zero(void)
{
	return _mm256_setzero_ps();
}

static inline vf
v_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

static inline void
v_store(float *p, vf v)
{
	_mm256_storeu_ps(p, v);
}

/* All ones in the first n lanes. */
static inline __m256i
first(uint32_t n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n),
	    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf
v_load_n(const float *p, uint32_t n)
{
	return _mm256_maskload_ps(p, first(n));
}

static inline void
v_store_n(float *p, vf v, uint32_t n)
{
	_mm256_maskstore_ps(p, first(n), v);
}

static inline vf
v_load_bf16(const uint16_t *p)
{
	return load8_bf16(p);
}

static inline vf
v_load_bf16_n(const uint16_t *p, uint32_t n)
{
	uint16_t b[8] = { 0 };

	memcpy(b, p, n * sizeof(*p));
	return v_load_bf16(b);
}

static inline vf
v_load_e4m3(const uint8_t *p)
{
	return load8_e4m3(p);
}

static inline vf
v_load_e4m3_n(const uint8_t *p, uint32_t n)
{
	uint8_t b[8] = { 0 };

	memcpy(b, p, n);
	return v_load_e4m3(b);
}

static inline vf
v_add(vf a, vf b)
{
	return _mm256_add_ps(a, b);
}

static inline vf
v_sub(vf a, vf b)
{
	return _mm256_sub_ps(a, b);
}

static inline vf
v_mul(vf a, vf b)
{
	return _mm256_mul_ps(a, b);
}

static inline vf
v_div(vf a, vf b)
{
	return _mm256_div_ps(a, b);
}

static inline vf
v_fma(vf a, vf b, vf c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* A NaN in b is kept. */
static inline vf
v_max(vf a, vf b)
{
	return _mm256_max_ps(a, b);
}

static inline vf
v_min(vf a, vf b)
{
	return _mm256_min_ps(a, b);
}

/* v, but 0 where x < lo. */
static inline vf
v_zero_below(vf v, vf x, vf lo)
{
	return _mm256_andnot_ps(_mm256_cmp_ps(x, lo, _CMP_LT_OQ), v);
}

/* 2^n, n in the low bits of t (see v_exp). */
static inline vf
v_exp2i(vf t)
{
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(
	    _mm256_castps_si256(t), 23), _mm256_set1_epi32(0x3f800000)));
}

static inline float
v_hsum(vf v)
{
	v = _mm256_hadd_ps(v, v);
	v = _mm256_hadd_ps(v, v);
	return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(v),
	    _mm256_extractf128_ps(v, 1)));
}

/* Four at once, by the same tree. */
static inline void
v_hsum4(float *sum, const vf *v)
{
	vf s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]),
	    _mm256_hadd_ps(v[2], v[3]));

	_mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(s),
	    _mm256_extractf128_ps(s, 1)));
}

#include "kernels/cpu/prim_body.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
