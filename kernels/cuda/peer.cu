/*
 * Ranks that wait for each other by flags in peer memory: a kernel a meeting,
 * or a part of one (peer.cuh), no event, no host. dcpg.h says what a call
 * promises.
 *
 * A rank's words are 128 bytes apart, so that no two writers share a line:
 *   0 .. W-1         the last meeting that rank o has reached, written by o
 *   W + PEER_BEGUN   meetings this rank has begun, written by this rank alone
 *   W + PEER_LOST    not 0: a peer did not come; nothing is waited for again
 *   W + PEER_OUT     blocks that are out of the meeting inside their kernel
 *   W + PEER_TAKEN   arrivals from each rank that were waited for
 *   W + PEER_EXTRA + o  arrivals from rank o, added to by its blocks
 * The number of a meeting comes from PEER_BEGUN, in the kernel, so that a graph
 * can be replayed; words only grow and are compared as differences, so they may
 * wrap.
 *
 * Why it is right. What a rank wrote before a meeting is visible to its
 * peers after it: kernels of a stream run one after another, the store of
 * the flag releases at system scope all that came before, the load that sees
 * it acquires, and the reader is a later kernel of that stream. Where the
 * meeting stands inside the reader, each of its blocks acquires for itself,
 * and the flag is stored when all kernels before it have ended (launch_wait,
 * where one is launched early). A rank is at most one meeting ahead of its
 * peers: two would need a flag that they have not written yet.
 *
 * Arrivals need no meeting: each block of a kernel that writes into a peer's
 * memory adds one to its word there, releasing what the block wrote, and who
 * reads it knows how many blocks there are. That the place is free again, both
 * know by a meeting in between.
 */
#include <errno.h>
#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

using namespace dcpg;

namespace {

enum { THREADS = 256 };

__global__ void
meet_kernel(const __grid_constant__ struct dcpg_peer p)
{
	meet(p);
}

/* Eight neighbours of a head's rope part: of the first half of it, or (second)
 * of the other. */
__device__ inline uint4
turned(const struct dcpg_rope &r, uint32_t row, uint32_t head, uint32_t piece)
{
	uint32_t half = r.dims / 2, p = piece * 8 % half;
	bool second = piece * 8 >= half;
	const uint4 *x = (const uint4 *)((const __nv_bfloat16 *)r.from +
	    ((size_t)row * r.heads + head) * r.step + 2 * p);
	const float4 *c = (const float4 *)(r.cos + (size_t)row * half + p);
	const float4 *s = (const float4 *)(r.sin + (size_t)row * half + p);
	uint4 x0 = x[0], x1 = x[1];
	float4 c0 = c[0], c1 = c[1], s0 = s[0], s1 = s[1];
	uint32_t w[8] = { x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w };
	float cs[8] = { c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w };
	float sn[8] = { s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w };
	float y[8];

#pragma unroll
	for (int i = 0; i < 8; i++) {
		float a = bf16_lo(w[i]), b = bf16_hi(w[i]);

		y[i] = second ? b * cs[i] + a * sn[i] : a * cs[i] - b * sn[i];
	}
	return make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]),
	    pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
}

/*
 * grid: (shares of a row, rows). A thread has U 16-byte pieces of a row under
 * way; each block tells of its own, the first waits for all blocks of the
 * peers. ROPE: of every head the last pieces are made here, for this rank, too.
 */
template <uint32_t U, bool ROPE>
__global__ void __launch_bounds__(THREADS)
push_kernel(const __grid_constant__ struct dcpg_peer p,
    const __grid_constant__ struct dcpg_push a)
{
	uint32_t per = (uint32_t)(a.bytes / 16), row = blockIdx.y;
	uint32_t at = blockIdx.x * THREADS * U + threadIdx.x, t = threadIdx.x;
	uint32_t head = ROPE ? per / a.rope.heads : 1;	/* pieces of one */
	uint32_t latent = ROPE ? head - a.rope.dims / 8 : 0;
	uint32_t blocks = gridDim.x * gridDim.y;
	uint4 *from = (uint4 *)((char *)a.from + row * a.from_step);
	uint4 v[U];

	launch_wait();
	launch_next();
#pragma unroll
	for (uint32_t u = 0; u < U; u++) {
		uint32_t i = at + u * THREADS;

		if (i >= per)
			continue;
		if (ROPE && i % head >= latent)
			v[u] = from[i] = turned(a.rope, row, i / head,
			    i % head - latent);
		else
			v[u] = from[i];
	}
	for (uint32_t e = 0; e < a.n; e++) {
		uint4 *to = (uint4 *)((char *)a.to[e] + row * a.to_step);

		if (a.to[e] == NULL)
			continue;
#pragma unroll
		for (uint32_t u = 0; u < U; u++)
			if (at + u * THREADS < per)
				to[at + u * THREADS] = v[u];
	}
	__syncthreads();
	if (t < a.n)
		peer_arrive(peer_arrivals(p, a.first + t, p.self));
	if (blockIdx.x != 0 || row != 0)
		return;
	arrivals_in(p, a.first, a.n, blocks);
	if (t == 0)
		*(volatile uint32_t *)peer_word(p, PEER_TAKEN) += blocks;
}

template <uint32_t U>
cudaError_t
push(const cudaLaunchConfig_t *cfg, const struct dcpg_peer *p,
    const struct dcpg_push *a)
{
	return a->rope.dims > 0 ?
	    cudaLaunchKernelEx(cfg, push_kernel<U, true>, *p, *a) :
	    cudaLaunchKernelEx(cfg, push_kernel<U, false>, *p, *a);
}

}	/* namespace */

/* The kernels are on the device before any of them spins there. */
extern "C" int
dcpg_peer_init(void)
{
	cudaFuncAttributes a;
	bool ok = cudaFuncGetAttributes(&a, meet_kernel) == cudaSuccess;

	for (auto k : { push_kernel<1, false>, push_kernel<1, true>,
	    push_kernel<4, false>, push_kernel<4, true> })
		ok = ok && cudaFuncGetAttributes(&a, k) == cudaSuccess;
	return ok ? 0 : -EIO;
}

extern "C" size_t
dcpg_peer_words(uint32_t world)
{
	return (2 * world + PEER_EXTRA) * (size_t)PEER_STEP;
}

extern "C" int
dcpg_peer_meet(const struct dcpg_peer *p, void *stream)
{
	if (p->world < 2 || p->world > DCPK_MAX_RANKS || p->self >= p->world)
		return -EINVAL;
	meet_kernel<<<1, 64, 0, (cudaStream_t)stream>>>(*p);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

extern "C" int
dcpg_peer_push(const struct dcpg_peer *p, const struct dcpg_push *a,
    void *stream)
{
	uint64_t per = a->bytes / 16, shares = (per + THREADS - 1) / THREADS;
	cudaLaunchAttribute at = {};
	cudaLaunchConfig_t cfg = {};

	if (p->world < 2 || p->world > DCPK_MAX_RANKS || p->self >= p->world ||
	    a->n == 0 || a->n > p->world || a->first > p->world - a->n ||
	    a->rows == 0 || a->rows > 65535 || a->bytes == 0 ||
	    per > 1u << 30 ||
	    (a->bytes | a->from_step | a->to_step) % 16 != 0 ||
	    (a->rope.dims > 0 && (a->rope.heads == 0 ||
	    a->rope.dims % 16 != 0 || a->rope.step % 8 != 0 ||
	    per % a->rope.heads != 0 ||
	    per / a->rope.heads < a->rope.dims / 8)))
		return -EINVAL;
	at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at.val.programmaticStreamSerializationAllowed = 1;
	cfg.blockDim = dim3(THREADS);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = &at;
	cfg.numAttrs = 1;
	/* few blocks: a piece a thread; else all of them at once with four */
	if (shares * a->rows <= 264) {
		cfg.gridDim = dim3((uint32_t)shares, a->rows);
		return push<1>(&cfg, p, a) == cudaSuccess ? 0 : -EIO;
	}
	cfg.gridDim = dim3((uint32_t)((shares + 3) / 4), a->rows);
	return push<4>(&cfg, p, a) == cudaSuccess ? 0 : -EIO;
}
