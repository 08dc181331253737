/*
 * Routed experts: who goes where, and the sum of what comes back. dcpg.h says
 * what is computed.
 *
 * Logits. A block owns 64 experts, up to 32 rows and a share of the columns; a
 * warp 16 experts and half of the share, so that for one row all SMs read the
 * router at once. Products are those of f32: each factor is split into two
 * tf32, and three of the four products are summed. Partial sums go to memory,
 * [share][rows][experts], and are added in order by whoever chooses. Bytes that
 * must move: 4 an element of the router. Of many rows: route_rows.cu.
 *
 * The choice is a block a row, of many rows a warp; the slots one block, the
 * sum a block a row and 1024 columns.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include <type_traits>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {

int route_rows(const struct dcpg_route *, uint32_t *shares, void *stream);

namespace {

constexpr uint32_t MAX_EXPERTS = 1024, MAX_EACH = 32;
constexpr uint32_t GROUP = 64;		/* experts of a block of logits */
constexpr uint32_t SHARES = 32;		/* of the columns, at most */
/* From here on route_rows and a choice by warps are faster: measured at 256,
 * where they are not, and 512. */
constexpr uint32_t MANY_ROWS = 320;

/* --- logits -------------------------------------------------------------- */

__device__ inline uint32_t
tf32(float x)
{
	uint32_t r;

	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
	return r;
}

/* d[16][8] += a[16][8] * b[8][8]^T */
__device__ inline void
mma_tf32(float (&d)[4], const uint32_t *a, const uint32_t *b)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
	    "r"(b[1]));
}

/* Or zeros. Volatile, so that a batch of them is under way at once. */
__device__ inline float4
load4(const float *p, bool there)
{
	float4 v;

	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
	    "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\n"
	    "mov.b32 %3, 0;\n"
	    "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
	    : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
	    : "l"(p), "r"((uint32_t)there));
	return v;
}

/*
 * Sixteen columns: thread c of a row holds four adjacent ones; the first
 * product takes its first two, the second the others.
 */
template <uint32_t NB>
__device__ inline void
step16(float (&d)[3][NB][4], const float4 (&w)[2], const float4 (&h)[NB])
{
	const float *x = (const float *)&w[0], *y = (const float *)&w[1];

#pragma unroll
	for (int s = 0; s < 2; s++) {
		float a[4] = { x[2 * s], y[2 * s], x[2 * s + 1], y[2 * s + 1] };
		uint32_t hi[4], lo[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			hi[i] = tf32(a[i]);
			lo[i] = tf32(a[i] - __uint_as_float(hi[i]));
		}
#pragma unroll
		for (uint32_t n = 0; n < NB; n++) {
			const float *z = (const float *)&h[n];
			float b[2] = { z[2 * s], z[2 * s + 1] };
			uint32_t bh[2] = { tf32(b[0]), tf32(b[1]) }, bl[2];

			bl[0] = tf32(b[0] - __uint_as_float(bh[0]));
			bl[1] = tf32(b[1] - __uint_as_float(bh[1]));
			mma_tf32(d[0][n], lo, bh);
			mma_tf32(d[1][n], hi, bl);
			mma_tf32(d[2][n], hi, bh);
		}
	}
}

/* Grid: groups of 64 experts, shares, runs of 8 * NB rows. */
template <uint32_t NB>
__global__ void __launch_bounds__(256)
logit_kernel(const struct dcpg_route g)
{
	constexpr uint32_t DEEP = NB == 1 ? 8 : NB == 2 ? 4 : 3;
	__shared__ float other[4][NB][4][32];
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;
	uint32_t e0 = blockIdx.x * GROUP + w % 4 * 16 + lane / 4;
	uint32_t r0 = blockIdx.z * 8 * NB, all = (g.hidden + 15) / 16;
	uint32_t share = blockIdx.y * 2 + w / 4, of = gridDim.y * 2;
	uint32_t c0 = all * share / of, c1 = all * (share + 1) / of;
	const float *x[2], *h[NB];
	float d[3][NB][4] = {};

	for (uint32_t i = 0; i < 2; i++)
		x[i] = g.w + (size_t)min(e0 + i * 8, g.experts - 1) * g.hidden;
	for (uint32_t n = 0; n < NB; n++)
		h[n] = g.h + (size_t)min(r0 + n * 8 + lane / 4, g.rows - 1) *
		    g.hidden;
	launch_wait();
	launch_next();
	for (uint32_t c = c0; c < c1; c += DEEP) {
		float4 a[DEEP][2], b[DEEP][NB];

#pragma unroll
		for (uint32_t i = 0; i < DEEP; i++) {
			uint32_t k = (c + i) * 16 + lane % 4 * 4;
			bool there = c + i < c1 && k < g.hidden;

			a[i][0] = load4(x[0] + k, there);
			a[i][1] = load4(x[1] + k, there);
#pragma unroll
			for (uint32_t n = 0; n < NB; n++)
				b[i][n] = load4(h[n] + k, there);
		}
		__syncwarp();	/* else the assembler moves loads down */
#pragma unroll
		for (uint32_t i = 0; i < DEEP; i++)
			step16<NB>(d, a[i], b[i]);
	}
#pragma unroll
	for (uint32_t n = 0; n < NB; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			d[2][n][i] += d[0][n][i] + d[1][n][i];
			if (w >= 4)
				other[w - 4][n][i][lane] = d[2][n][i];
		}
	__syncthreads();
	if (w >= 4)
		return;
#pragma unroll
	for (uint32_t n = 0; n < NB; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t r = r0 + n * 8 + lane % 4 * 2 + i % 2;
			uint32_t e = e0 + i / 2 * 8;

			if (r < g.rows && e < g.experts)
				g.part[((size_t)blockIdx.y * g.rows + r) *
				    g.experts + e] = d[2][n][i] +
				    other[w][n][i][lane];
		}
}

/* --- choice -------------------------------------------------------------- */

/* Greater floats, greater words; none is 0. */
__device__ inline uint32_t
ordered(float x)
{
	uint32_t u = __float_as_uint(x);

	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The two best of a group, summed; the whole warp calls and knows. */
__device__ inline float
best_two(const float *v, uint32_t n)
{
	uint32_t lane = threadIdx.x % 32;
	float a = -INFINITY, b = -INFINITY;

	for (uint32_t i = lane; i < n; i += 32) {
		b = fmaxf(b, fminf(a, v[i]));
		a = fmaxf(a, v[i]);
	}
	for (int o = 16; o > 0; o >>= 1) {
		float x = __shfl_xor_sync(~0u, a, o);
		float y = __shfl_xor_sync(~0u, b, o);

		b = fmaxf(fmaxf(b, y), fminf(a, x));
		a = fmaxf(a, x);
	}
	return n > 1 ? a + b : a;
}

/* The best of what a lane owns: every 32nd. */
__device__ inline uint32_t
best_of(const uint32_t *key, uint32_t n, uint32_t *id)
{
	uint32_t best = 0;

	for (uint32_t e = threadIdx.x % 32; e < n; e += 32)
		if (key[e] > best) {
			best = key[e];
			*id = e;
		}
	return best;
}

/* A block of 256 a row. */
__global__ void __launch_bounds__(256)
choose_kernel(const struct dcpg_route g, uint32_t shares)
{
	__shared__ float s[MAX_EXPERTS], v[MAX_EXPERTS], gs[MAX_EXPERTS];
	__shared__ uint32_t key[MAX_EXPERTS];
	uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
	uint32_t w = threadIdx.x / 32;
	uint32_t per = g.experts / g.groups, mine = 0, id = 0;
	size_t step = (size_t)g.rows * g.experts;
	float sum = 0, ew = 0;

	launch_wait();
	launch_next();
	for (uint32_t e = threadIdx.x; e < g.experts; e += 256) {
		const float *p = g.part + (size_t)row * g.experts + e;
		float x[SHARES], d = 0;

#pragma unroll
		for (uint32_t i = 0; i < SHARES; i++)
			x[i] = i < shares ? p[i * step] : 0;
#pragma unroll
		for (uint32_t i = 0; i < SHARES; i++)
			d += x[i];
		s[e] = 1 / (1 + expf(-d));
		v[e] = s[e] + g.bias[e];
		key[e] = ordered(v[e]);
	}
	__syncthreads();
	if (g.kept < g.groups) {
		for (uint32_t i = w; i < g.groups; i += 8) {
			float two = best_two(v + i * per, per);

			if (lane == 0)
				gs[i] = two;
		}
		__syncthreads();
		for (uint32_t e = threadIdx.x; e < g.experts; e += 256) {
			uint32_t at = e / per, better = 0;

			for (uint32_t o = 0; o < g.groups; o++)
				better += gs[o] > gs[at] ||
				    (gs[o] == gs[at] && o < at);
			if (better >= g.kept)
				key[e] = ordered(-INFINITY);
		}
		__syncthreads();
	}
	if (w != 0)
		return;
	mine = best_of(key, g.experts, &id);
	for (uint32_t k = 0; k < g.each; k++) {
		uint32_t top = __reduce_max_sync(~0u, mine);
		uint32_t win = __reduce_min_sync(~0u, mine == top ? id : ~0u);

		sum += s[win];
		if (lane == k) {
			ew = s[win];
			g.eid[(size_t)row * g.each + k] = win;
		}
		if (lane == win % 32) {
			key[win] = 0;
			mine = best_of(key, g.experts, &id);
		}
	}
	if (lane < g.each)
		g.ew[(size_t)row * g.each + lane] = ew * (g.scale /
		    (g.norm ? sum + 1e-20f : 1));
}

/*
 * A warp a row, eight a block: a lane has every 32nd expert. The same result
 * as choose_kernel's.
 */
template <uint32_t PER>
__global__ void __launch_bounds__(256)
choose_many_kernel(const struct dcpg_route g, uint32_t shares)
{
	__shared__ float value[8][32 * PER], sums[8][32 * PER];
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32;
	uint32_t row = blockIdx.x * 8 + w, per = g.experts / g.groups;
	size_t step = (size_t)g.rows * g.experts;
	const float *p = g.part + (size_t)row * g.experts + lane;
	float *v = value[w], *gs = sums[w];
	float s[PER] = {}, sum = 0, ew = 0;
	uint32_t key[PER], mine = 0, id = 0;

	launch_wait();
	launch_next();
	if (row >= g.rows)
		return;
#pragma unroll 4
	for (uint32_t k = 0; k < shares; k++)
#pragma unroll
		for (uint32_t i = 0; i < PER; i++)
			if (lane + i * 32 < g.experts)
				s[i] += p[k * step + i * 32];
#pragma unroll
	for (uint32_t i = 0; i < PER; i++) {
		uint32_t e = lane + i * 32;

		s[i] = 1 / (1 + expf(-s[i]));
		v[e] = e < g.experts ? s[i] + g.bias[e] : 0;
		key[i] = e < g.experts ? ordered(v[e]) : 0;
	}
	if (g.kept < g.groups) {
		__syncwarp();
		for (uint32_t i = 0; i < g.groups; i++) {
			float two = best_two(v + i * per, per);

			if (lane == 0)
				gs[i] = two;
		}
		__syncwarp();
		for (uint32_t i = lane; i < g.groups; i += 32) {
			uint32_t better = 0;

			for (uint32_t o = 0; o < g.groups; o++)
				better += gs[o] > gs[i] ||
				    (gs[o] == gs[i] && o < i);
			v[i] = better < g.kept;	/* values are not needed more */
		}
		__syncwarp();
#pragma unroll
		for (uint32_t i = 0; i < PER; i++)
			if (lane + i * 32 < g.experts &&
			    v[(lane + i * 32) / per] == 0)
				key[i] = ordered(-INFINITY);
	}
	for (uint32_t k = 0; k < g.each; k++) {
		uint32_t top, win;
		float x = 0;

		mine = 0;
#pragma unroll
		for (uint32_t i = 0; i < PER; i++)
			if (key[i] > mine) {
				mine = key[i];
				id = lane + i * 32;
			}
		top = __reduce_max_sync(~0u, mine);
		win = __reduce_min_sync(~0u, mine == top ? id : ~0u);
#pragma unroll
		for (uint32_t i = 0; i < PER; i++)
			if (win == lane + i * 32) {
				x = s[i];
				key[i] = 0;
			}
		x = __shfl_sync(~0u, x, win % 32);
		sum += x;
		if (lane == k) {
			ew = x;
			g.eid[(size_t)row * g.each + k] = win;
		}
	}
	if (lane < g.each)
		g.ew[(size_t)row * g.each + lane] = ew * (g.scale /
		    (g.norm ? sum + 1e-20f : 1));
}

/* --- slots --------------------------------------------------------------- */

/* Sum over the threads before this one; *all: over all 1024. */
__device__ inline uint32_t
sum_before(uint32_t x, uint32_t *all)
{
	__shared__ uint32_t part[32];
	uint32_t lane = threadIdx.x % 32, w = threadIdx.x / 32, y = x, z;

	for (uint32_t o = 1; o < 32; o *= 2) {
		uint32_t up = __shfl_up_sync(~0u, y, o);

		y += lane >= o ? up : 0;
	}
	if (lane == 31)
		part[w] = y;
	__syncthreads();
	z = part[lane];
	__syncthreads();
	*all = __reduce_add_sync(~0u, z);
	return y - x + __reduce_add_sync(~0u, lane < w ? z : 0);
}

/* One block: thread e counts for expert e. */
__global__ void __launch_bounds__(1024)
slot_kernel(const struct dcpg_slots g, uint32_t tiles)
{
	__shared__ uint32_t count[MAX_EXPERTS], next[MAX_EXPERTS];
	uint32_t e = threadIdx.x, n = g.rows * g.each;
	uint32_t have, at, t, all, used;

	count[e] = 0;
	__syncthreads();
	launch_wait();
	launch_next();
	for (uint32_t i = e; i < n; i += 1024)
		atomicAdd(&count[g.eid[i]], 1);
	__syncthreads();
	have = count[e];
	at = sum_before(have, &all);
	t = sum_before((have + g.tile - 1) / g.tile, &used);
	next[e] = at;
	if (e < g.experts) {
		g.first[e] = at;
		if (g.tile0 != NULL)
			g.tile0[e] = t;
		for (uint32_t m = 0; m < have; m += g.tile, t++) {
			g.tile_e[t] = e;
			if (g.tile_m != NULL)
				g.tile_m[t] = at + m;
		}
	}
	if (e == 0) {
		g.first[g.experts] = all;
		if (g.tile0 != NULL)
			g.tile0[g.experts] = used;
	}
	for (uint32_t i = used + e; i < tiles; i += 1024)
		g.tile_e[i] = g.experts;
	__syncthreads();
	for (uint32_t i = e; i < n; i += 1024) {
		uint32_t s = atomicAdd(&next[g.eid[i]], 1);

		g.slot[i] = s;
		g.slot_row[s] = i / g.each;
	}
}

/* --- sum ----------------------------------------------------------------- */

/* A thread owns the columns that fit into a V of T. Who goes where and y are
 * older than the kernel before this one (dcpg.h): read while that runs. */
template <typename T, typename V>
__global__ void __launch_bounds__(256)
combine_kernel(const struct dcpg_combine g)
{
	__shared__ uint32_t slot[MAX_EACH];
	__shared__ float weight[MAX_EACH];
	constexpr uint32_t N = sizeof(V) / sizeof(T);
	uint32_t i = blockIdx.x, d = blockIdx.y * 256 + threadIdx.x;
	uint32_t k = threadIdx.x;
	typedef typename std::conditional<N == 1, float, float4>::type F;
	V x[8];
	float y[N] = {};
	F old[N == 1 ? 1 : N / 4] = {};
	F *out = (F *)(g.y + (size_t)i * g.n + d * N);

	for (uint32_t c = 0; g.add && d < g.n / N &&
	    c < sizeof old / sizeof *old; c++)
		old[c] = __ldcg(out + c);
	if (k < g.each) {
		const uint32_t *id = g.eid + (size_t)i * g.each;
		uint32_t before = 0, mine = __ldcg(id + k);

		for (uint32_t o = 0; o < g.each; o++)
			before += __ldcg(id + o) < mine;
		slot[before] = __ldcg(g.slot + (size_t)i * g.each + k);
		weight[before] = __ldcg(g.ew + (size_t)i * g.each + k);
	}
	launch_wait();
	launch_next();
	__syncthreads();
	if (d >= g.n / N)
		return;
	for (uint32_t b = 0; b < g.each; b += 8) {
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			if (b + j < g.each)
				x[j] = *((const V *)((const T *)g.x +
				    (size_t)slot[b + j] * g.n) + d);
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			for (uint32_t c = 0; b + j < g.each && c < N; c++)
				y[c] += weight[b + j] *
				    (float)((const T *)&x[j])[c];
	}
	for (uint32_t c = 0; c < N; c++)
		((float *)old)[c] += y[c];
	for (uint32_t c = 0; c < sizeof old / sizeof *old; c++)
		out[c] = old[c];
}

/* --- launching ----------------------------------------------------------- */

template <class... A, class... B>
int
start(void (*f)(A...), dim3 grid, uint32_t threads, void *stream, B... args)
{
	return launch_early(f, grid, threads, (cudaStream_t)stream, args...) ==
	    cudaSuccess ? 0 : -EIO;
}

/* Few rows. *shares: partial sums that it leaves. */
int
run_few(const struct dcpg_route *g, uint32_t *shares, void *stream)
{
	uint32_t nb = g->rows <= 8 ? 1 : g->rows <= 16 ? 2 : 4;
	uint32_t runs = (g->rows + 8 * nb - 1) / (8 * nb);
	size_t most = g->part_floats / g->experts / g->rows;
	dim3 grid((g->experts + GROUP - 1) / GROUP, 1, runs);

	*shares = most < SHARES ? (uint32_t)most : SHARES;
	if (*shares > SHARES / runs)	/* enough blocks without */
		*shares = runs < SHARES ? SHARES / runs : 1;
	grid.y = *shares;
	return nb == 1 ? start(logit_kernel<1>, grid, 256, stream, *g) :
	    nb == 2 ? start(logit_kernel<2>, grid, 256, stream, *g) :
	    start(logit_kernel<4>, grid, 256, stream, *g);
}

}	/* namespace */
}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_route(const struct dcpg_route *g, void *stream)
{
	uint32_t shares;
	int rc = -EINVAL;

	if (g->rows == 0 || g->hidden == 0 || g->hidden % 4 != 0 ||
	    g->experts == 0 || g->experts > MAX_EXPERTS || g->each == 0 ||
	    g->each > MAX_EACH || g->each > g->experts || g->groups == 0 ||
	    g->experts % g->groups != 0 || g->rows > 65535 * 32 ||
	    g->part_floats / g->experts < g->rows || g->way > 2)
		return -EINVAL;
	if (g->way == 2 || (g->way == 0 && g->rows >= MANY_ROWS))
		rc = route_rows(g, &shares, stream);
	if (rc == -EINVAL && g->way != 2)
		rc = run_few(g, &shares, stream);
	if (rc != 0)
		return rc;
	if (g->rows < MANY_ROWS || g->experts > 512)
		return start(choose_kernel, dim3(g->rows), 256, stream, *g,
		    shares);
	return start(g->experts <= 256 ? choose_many_kernel<8> :
	    choose_many_kernel<16>, dim3((g->rows + 7) / 8), 256, stream, *g,
	    shares);
}

extern "C" int
dcpg_slots(const struct dcpg_slots *g, void *stream)
{
	if (g->rows == 0 || g->experts == 0 || g->experts > MAX_EXPERTS ||
	    g->tile == 0)
		return -EINVAL;
	return start(slot_kernel, dim3(1), 1024, stream, *g,
	    dcpg_expert_tiles(g->rows, g->each, g->experts, g->tile));
}

extern "C" int
dcpg_combine(const struct dcpg_combine *g, void *stream)
{
	dim3 grid(g->rows, 1);

	if (g->rows == 0 || g->each == 0 || g->each > MAX_EACH || g->n == 0)
		return -EINVAL;
	if (g->x_bf16 && g->n % 8 != 0)
		return -EINVAL;
	if (g->x_bf16) {
		grid.y = (g->n / 8 + 255) / 256;
		return start(combine_kernel<__nv_bfloat16, uint4>, grid, 256,
		    stream, *g);
	}
	if (g->n % 4 != 0) {
		grid.y = (g->n + 255) / 256;
		return start(combine_kernel<float, float>, grid, 256, stream,
		    *g);
	}
	grid.y = (g->n / 4 + 255) / 256;
	return start(combine_kernel<float, float4>, grid, 256, stream, *g);
}
