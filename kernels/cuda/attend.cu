/*
 * Sparse decode attention: a few query rows, each with its own list of pool
 * rows, against packed fp8 or bf16 rows. dcpg.h says what is computed,
 * attend.cuh how one block sums.
 *
 * A block owns NH heads of one query row and one split of its key list. Splits
 * of a list merge their results in the same launch (attend_out.cuh). Two
 * blocks of heads of a split may be a team, whose rows are fetched once for
 * both. Which NH, how many splits and whether teams is chosen from the shape,
 * by what was measured.
 *
 * Shared memory, NH = 64, fp8: q 72 KB, 3 stages of 41 KB, p 16 KB, the rest
 * 5 KB.
 *
 * Bytes that must move: rows*count*656 (1152), + rows*heads*(1152 + 1024).
 * Flops: rows*heads*count*2176.
 */
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include <algorithm>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_heads.cuh"
#include "kernels/cuda/attend_out.cuh"
#include "kernels/cuda/attend_roles.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

/* A warp has told its team mates all that it has to; it leaves when they have,
 * too, since they use this block's barriers. */
__device__ inline void
done_with(const Team &team)
{
	__syncwarp();
	if (team.n > 1)
		cluster_arrive();
}

__device__ inline void
leave(const Team &team)
{
	__syncwarp();
	if (team.n > 1)
		cluster_wait();
}

/* What warps do that only score. */
template <class S>
__device__ inline void
compute_scores(const Place &p, uint32_t smem, uint32_t n, const Team &team)
{
	Acc<S> a;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		a.l[j] = 0.0f;
	a.seen = 0;
	score_rounds<S>(a, p, smem, n);
	done_with(team);
	leave(team);
}

/* What the other computing warps do. */
template <class S>
__device__ inline void
compute(const Args &g, const Place &p, uint32_t smem, uint32_t n,
    const Team &team)
{
	Acc<S> a;

#pragma unroll
	for (int i = 0; i < S::tiles; i++)
#pragma unroll
		for (int j = 0; j < S::nh / 2; j++)
			a.o[i][j] = 0.0f;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		a.l[j] = 0.0f;
	a.seen = 0;
	if constexpr (S::roles)
		sum_rounds<S>(a, p, team, smem, n);
	else
		attend<S>(a, p, team, smem, n);
	done_with(team);
	bar_sync(BAR_SUMS, S::work + 128);
	if (S::splits == 1 || gridDim.x == 1)
		write_all<S>(g, a, p, smem);
	else if constexpr (S::splits > 1)
		merge<S>(g, a, p, smem, n);
	if (g.arrive)
		tell_owners<S>(g);
	leave(team);
}

/* q to shared memory; how many keys the block has. */
template <class S>
__device__ inline uint32_t
begin(const Args &g, uint8_t *mem, const Team &team)
{
	uint32_t head0 = blockIdx.z * g.heads + blockIdx.y * S::nh;
	uint32_t count = min(g.count[blockIdx.z], g.max_count);

	load_q<S>(g, g.q + (size_t)head0 * 1152, mem);
	fence_async();
	bar_sync(BAR_Q, S::computing);
	if (team.n > 1)
		cluster_wait();		/* everyone's barriers are set up */
	return my_part(g, count).n;
}

/* grid: (splits, heads / NH, rows), clusters of (1, team, 1). */
template <class S>
__global__ void __launch_bounds__(S::threads, 1)
attend_kernel(const Args g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	uint32_t smem = smem_addr(mem), lane = threadIdx.x % 32, n;
	Team team(g.team);
	Place p = { threadIdx.x / 128, threadIdx.x / 32 % 4, lane, lane / 4,
	    lane % 4 };

	if (threadIdx.x >= S::computing)
		fetch_list<S>(g);
	if (threadIdx.x == 0) {
		for (int i = 0; i < S::stages; i++) {
			mbar_init(smem + S::bar_off + i * 8, 1);
			mbar_init(smem + S::bar_off + 64 + i * 8,
			    S::wgs * 4 * team.n);
		}
		for (int i = 0; i < S::places; i++) {
			mbar_init(p_bar<S>(smem, i), 4);
			mbar_init(p_bar<S>(smem, i) + 32, S::wgs * 4);
		}
		mbar_publish();
	}
	fence_async();
	if (threadIdx.x < S::nh)
		sts32(smem + S::ms_off + threadIdx.x * 4,
		    ordered(-INFINITY));
	if (threadIdx.x == 0)
		sts64(smem + S::ce_off, 0, 0);	/* and unit_off */
	__syncthreads();
	if (team.n > 1)
		cluster_arrive();
	launch_wait();
	launch_next();
	if (threadIdx.x >= S::computing) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::
		    "n"(S::spare));
		n = gather<S>(g, team, smem);
		done_with(team);
		finish<S>(g, smem, n);
		leave(team);
		return;
	}
	n = begin<S>(g, mem, team);
	if (threadIdx.x >= S::work) {
		p.wg -= S::wgs;
		if constexpr (S::roles)
			compute_scores<S>(p, smem, n, team);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::
		    "n"(S::regs));
		compute<S>(g, p, smem, n, team);
	}
}

/* --- host ---------------------------------------------------------------- */

template <class S>
constexpr auto
kernel_of(void)
{
	if constexpr (std::is_same_v<S, Heads>)
		return heads_kernel;
	else
		return attend_kernel<S>;
}

template <class S>
void
configure(cudaLaunchConfig_t *cfg, cudaLaunchAttribute at[2], dim3 grid,
    uint32_t team)
{
	at[0].id = cudaLaunchAttributeClusterDimension;
	at[0].val.clusterDim.x = 1;
	at[0].val.clusterDim.y = team;
	at[0].val.clusterDim.z = 1;
	at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[1].val.programmaticStreamSerializationAllowed = 1;
	*cfg = {};
	cfg->gridDim = grid;
	cfg->blockDim = dim3(S::threads);
	cfg->dynamicSmemBytes = S::bytes;
	cfg->attrs = at;
	cfg->numAttrs = 2;
}

template <class S>
int
launch(const Args &g, uint32_t rows, uint32_t splits, cudaStream_t stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg;

	configure<S>(&cfg, at, dim3(splits, g.heads / S::nh, rows), g.team);
	cfg.stream = stream;
	return cudaLaunchKernelEx(&cfg, kernel_of<S>(), g) == cudaSuccess ?
	    0 : -EIO;
}

/* fit[n]: how many teams of n blocks run at once. */
template <class S>
cudaError_t
prepare(int fit[MAX_TEAM + 1])
{
	cudaError_t e = cudaFuncSetAttribute(kernel_of<S>(),
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes);

	for (int n = 1; n <= S::max_team && e == cudaSuccess; n++) {
		cudaLaunchAttribute at[2];
		cudaLaunchConfig_t cfg;

		configure<S>(&cfg, at, dim3(1, n, 1), n);
		cfg.numAttrs = 1;
		e = cudaOccupancyMaxActiveClusters(&fit[n], kernel_of<S>(),
		    &cfg);
	}
	return e;
}

/*
 * One compiled shape. The three figures predict a launch: every wave of blocks
 * costs `fixed`, plus `stage` per 64 keys of a block (a tenth less where rows
 * are fetched together), plus `merge` when keys are split; us, fitted to what
 * an H200 took (doc/cuda.md). They only choose; any choice is right.
 */
struct Entry {
	struct dcpg_attend_shape shape;
	int (*launch)(const Args &, uint32_t, uint32_t, cudaStream_t);
	cudaError_t (*prepare)(int [MAX_TEAM + 1]);
	double fixed, stage, merge;
	uint32_t splits;	/* at most */
	size_t in_bytes;	/* of Args::work a block */
	int fit[MAX_TEAM + 1];
};

#define SHAPE(S, w, fixed, stage, merge) {				\
	{ S::nh, w }, launch<S>, prepare<S>, fixed, stage, merge,	\
	S::splits, S::in_bytes, { 0 } }
#define ENTRY(bf16, nh, w, fixed, stage, merge)				\
	SHAPE(decltype(Shape<bf16, nh, w>()), w, fixed, stage, merge)

Entry fp8_entries[] = {
	ENTRY(false, 64, 2, 9.98, 2.51, 0),
	ENTRY(false, 32, 2, 5.86, 1.48, 2.09),
	ENTRY(false, 16, 4, 3.27, 1.75, 1.76),
	ENTRY(false, 8, 4, 3.4, 1.45, 1.58),
	ENTRY(false, 16, 2, 4.34, 1.2, 1.76),
};
Entry bf16_entries[] = {
	ENTRY(true, 32, 2, 5.71, 2.16, 4.32),
	ENTRY(true, 16, 2, 6.02, 1.75, 0.85),
	ENTRY(true, 8, 2, 3.36, 2.09, 1.31),
	SHAPE(Heads, 2, 9, 2.4, 0),
};

/* The largest place of a block, of as many SMs as the head of dcpg.h says. */
static_assert(DCPG_ATTEND_WORK % 144 == 0 && Shape<true, 32, 2>::in_bytes <=
    DCPG_ATTEND_WORK / 144 && Shape<false, 32, 2>::in_bytes <=
    DCPG_ATTEND_WORK / 144, "room for splits");

template <class T, size_t N>
constexpr uint32_t
len(const T (&)[N])
{
	return N;
}

Entry *
entries(enum dcpk_kv kv, uint32_t *n)
{
	*n = kv == DCPK_KV_BF16 ? len(bf16_entries) : len(fp8_entries);
	return kv == DCPK_KV_BF16 ? bf16_entries : fp8_entries;
}

struct Choice {
	const Entry *e;
	uint32_t splits, team;
};

uint32_t
expected(const struct dcpg_attend *a)
{
	return a->expected > 0 && a->expected < a->max_count ? a->expected :
	    a->max_count;
}

/* us; INFINITY where the device cannot run it. */
double
predict(const struct dcpg_attend *a, const Choice &c)
{
	uint32_t groups = a->heads / c.e->shape.heads, waves, stages;
	uint32_t clusters = a->rows * groups / c.team, fit;
	double t = c.e->fixed;

	if (c.splits > c.e->splits || groups % c.team != 0 ||
	    c.e->fit[c.team] == 0)
		return INFINITY;
	fit = c.e->fit[c.team];
	/* Splits wait for each other: all run at once, each with its place. */
	if (c.splits > 1 && (a->work == NULL || clusters * c.splits > fit ||
	    clusters * c.team * c.splits * c.e->in_bytes > DCPG_ATTEND_WORK))
		return INFINITY;
	waves = (clusters + fit - 1) / fit;
	stages = ((expected(a) + c.splits - 1) / c.splits + KEYS - 1) / KEYS;
	t += c.e->stage * stages * (c.team > 1 ? 0.9 : 1);
	if (c.splits > 1)
		t += c.e->merge;
	return waves * t;
}

/* What the caller forces stays; the rest is the fastest by prediction. Teams of
 * four gain nothing over two and only run when forced. */
Choice
choose(const struct dcpg_attend *a)
{
	uint32_t n;
	const Entry *e = entries(a->kv, &n);
	Choice best = {};
	double t = INFINITY;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t x = 0; x < 3 * MAX_SPLITS; x++) {
			Choice c = { &e[i], x / 3 + 1, 1u << x % 3 };
			double y;

			if (c.e->shape.heads > a->heads ||
			    (a->shape > 0 && a->shape != i + 1) ||
			    (a->splits > 0 && a->splits != c.splits) ||
			    (a->team > 0 ? a->team != c.team : c.team > 2))
				continue;
			y = predict(a, c);
			if (y < t) {
				t = y;
				best = c;
			}
		}
	return best;
}

}	/* namespace */

int
attend_init(void)
{
	for (int b = 0; b < 2; b++) {
		uint32_t n;
		Entry *e = entries(b ? DCPK_KV_BF16 : DCPK_KV_FP8, &n);

		for (uint32_t i = 0; i < n; i++)
			if (e[i].prepare(e[i].fit) != cudaSuccess)
				return -EIO;
	}
	return 0;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" bool
dcpg_attend_shape(enum dcpk_kv kv, uint32_t i, struct dcpg_attend_shape *out)
{
	uint32_t n;
	const Entry *e = entries(kv, &n);

	if (i >= n)
		return false;
	*out = e[i].shape;
	std::copy(e[i].fit, e[i].fit + MAX_TEAM + 1, out->fit);
	out->splits = e[i].splits;
	return true;
}

extern "C" int
dcpg_attend(const struct dcpg_attend *a, void *stream)
{
	uint32_t parts = a->to != NULL ? a->parts : 1;
	Choice c;
	Args g;

	if ((a->kv != DCPK_KV_FP8 && a->kv != DCPK_KV_BF16) || a->rows == 0 ||
	    a->rows > 65535 || a->heads < 8 || a->heads > 128 ||
	    (a->heads & (a->heads - 1)) != 0 || a->list_stride < a->max_count ||
	    parts == 0 || a->heads % parts != 0 || (parts & (parts - 1)) != 0 ||
	    (a->q_ones && (a->peer.world < parts || a->first > a->peer.world -
	    parts)))
		return -EINVAL;
	c = choose(a);
	if (c.e == NULL)
		return -EINVAL;
	g.team = c.team;
	g.per = (c.e->shape.heads + c.splits - 1) / c.splits;
	if (g.per > 1)
		g.per += g.per % 2;
	g.per_magic = 65536 / g.per + 1;
	g.q = (const uint8_t *)a->q;
	g.q_ones = a->q_ones;
	g.first = a->first;
	g.peer = a->peer;
	g.pool = (const uint8_t *)a->pool;
	g.list = a->list;
	g.count = a->count;
	g.out = a->out;
	g.lse = a->lse;
	g.to = a->to;
	g.work = (uint8_t *)a->work;
	g.self = a->self;
	g.part_lg = (uint32_t)__builtin_ctz(a->heads / parts);
	g.heads = a->heads;
	g.list_stride = a->list_stride;
	g.max_count = a->max_count;
	g.split_magic = c.splits > 1 ? UINT32_MAX / c.splits + 1 : 0;
	g.share = share_of(expected(a), c.splits, g.split_magic);
	g.scale_log2 = a->scale * 1.4426950408889634f;
	g.out_f32 = a->out_f32;
	g.arrive = a->arrive && a->to != NULL;
	return c.e->launch(g, a->rows, c.splits, (cudaStream_t)stream);
}

extern "C" uint32_t
dcpg_attend_arrivals(const struct dcpg_attend *a)
{
	Choice c = choose(a);
	uint32_t each = a->heads / (a->to != NULL ? a->parts : 1);

	return c.e == NULL ? 0 : a->rows * c.splits * std::max(1u, each /
	    c.e->shape.heads);
}
