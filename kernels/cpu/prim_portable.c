/*
 * The arithmetic of prim.h in plain C: vectors of four floats that any
 * compiler lowers to what its target has. No fused multiply-add is assumed,
 * and none is used where there is one, so that all targets agree.
 */
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/prim.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define PRIMS dcpc_portable
#define PRIMS_NAME "portable"
#define VN 4u
#define HR 2u
#define VR 4u
#define GEMM_MR 4u
#define GEMM_TILES(X) X(4, 2) X(2, 4) X(1, 8)
#define PACKED_MR 4u
#define PACKED_TR 1u
#define PACKED_TR1 2u

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf
v_set1(float x)
{
	return (vf){ x, x, x, x };
}

static inline vf
v_zero(void)
{
	return v_set1(0);
}

static inline vf
v_load(const float *p)
{
	vf v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline vf
v_load_n(const float *p, uint32_t n)
{
	vf v = v_zero();

	memcpy(&v, p, n * sizeof(*p));
	return v;
}

static inline void
v_store(float *p, vf v)
{
	memcpy(p, &v, sizeof(v));
}

static inline void
v_store_n(float *p, vf v, uint32_t n)
{
	memcpy(p, &v, n * sizeof(*p));
}

static inline vf
v_load_bf16_n(const uint16_t *p, uint32_t n)
{
	uint16_t b[4] = { 0 };

	memcpy(b, p, n * sizeof(*p));
	return (vf)(vi){ (int32_t)((uint32_t)b[0] << 16),
	    (int32_t)((uint32_t)b[1] << 16), (int32_t)((uint32_t)b[2] << 16),
	    (int32_t)((uint32_t)b[3] << 16) };
}

static inline vf
v_load_bf16(const uint16_t *p)
{
	return v_load_bf16_n(p, 4);
}

static inline vf
v_load_e4m3_n(const uint8_t *p, uint32_t n)
{
	uint8_t b[4] = { 0 };

	memcpy(b, p, n);
	return (vf){ dcpc_e4m3[b[0]], dcpc_e4m3[b[1]], dcpc_e4m3[b[2]],
	    dcpc_e4m3[b[3]] };
}

static inline vf
v_load_e4m3(const uint8_t *p)
{
	return v_load_e4m3_n(p, 4);
}

static inline vf
v_add(vf a, vf b)
{
	return a + b;
}

static inline vf
v_sub(vf a, vf b)
{
	return a - b;
}

static inline vf
v_mul(vf a, vf b)
{
	return a * b;
}

static inline vf
v_div(vf a, vf b)
{
	return a / b;
}

static inline vf
v_fma(vf a, vf b, vf c)
{
	return a * b + c;
}

static inline vf
v_pick(vi m, vf a, vf b)
{
	return (vf)((m & (vi)a) | (~m & (vi)b));
}

/* A NaN in b is kept, as the x86 instructions do. */
static inline vf
v_max(vf a, vf b)
{
	return v_pick(a > b, a, b);
}

static inline vf
v_min(vf a, vf b)
{
	return v_pick(a < b, a, b);
}

/* v, but 0 where x < lo. */
static inline vf
v_zero_below(vf v, vf x, vf lo)
{
	return (vf)(~(vi)(x < lo) & (vi)v);
}

/* 2^n, n in the low bits of t (see v_exp). */
static inline vf
v_exp2i(vf t)
{
	return (vf)(((vi)t << 23) + (vi)v_set1(1.0f));
}

static inline float
v_hsum(vf v)
{
	return (v[0] + v[1]) + (v[2] + v[3]);
}

static inline void
v_hsum4(float *sum, const vf *v)
{
	int i;

	for (i = 0; i < 4; i++)
		sum[i] = v_hsum(v[i]);
}

#include "kernels/cpu/prim_body.h"
