/*
 * A rank's side of a meeting, for kernels. peer.cu has the protocol, its words
 * and why it is right; dcpg.h what a meeting promises.
 *
 * A kernel of its own meets by meet(). A kernel of many blocks that is to read
 * what peers wrote has the meeting inside: every thread of every block calls
 * meet_in() before it reads, and meet_out() when it is done; no block leaves
 * early. The first block tells the peers, each waits by itself, and the last
 * one out counts the meeting. Both do nothing where p.world is 0: there the
 * meeting was held by events, before the launch.
 *
 * What says itself that it is there: send_words, look_at_words, peer_patience.
 */
#ifndef DCPG_PEER_CUH
#define DCPG_PEER_CUH

#include <stdint.h>

#include "kernels/cuda/dcpg.h"

namespace dcpg {

enum { PEER_STEP = 32 };	/* words between flags */
/* Words behind the flags of the ranks, by number. */
enum { PEER_BEGUN, PEER_LOST, PEER_OUT, PEER_TAKEN, PEER_EXTRA };

__host__ __device__ inline uint32_t *
peer_word(const struct dcpg_peer &p, uint32_t which)
{
	return p.flags[p.self] + (p.world + which) * PEER_STEP;
}

/* The last meeting that peer `who` has reached. */
__device__ inline const uint32_t *
peer_flag(const struct dcpg_peer &p, uint32_t who)
{
	return p.flags[p.self] + who * PEER_STEP;
}

/* How many arrivals rank `from` has told rank `at` of. */
__host__ __device__ inline uint32_t *
peer_arrivals(const struct dcpg_peer &p, uint32_t at, uint32_t from)
{
	return p.flags[at] + (p.world + PEER_EXTRA + from) * PEER_STEP;
}

/* By one thread of a block, behind a barrier: what the block wrote for the
 * word's owner is there. */
__device__ inline void
peer_arrive(uint32_t *arrivals)
{
	asm volatile("red.release.sys.global.add.u32 [%0], 1;" :: "l"(arrivals)
	    : "memory");
}

__device__ inline void
peer_release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) :
	    "memory");
}

__device__ inline uint32_t
peer_acquire(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) :
	    "memory");
	return v;
}

__device__ inline uint64_t
now_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* The first wait that ends in vain leaves its record for the host. */
__device__ inline void
peer_give_up(const struct dcpg_peer &p, uint32_t who, uint32_t at)
{
	if (atomicExch(peer_word(p, PEER_LOST), 1) != 0)
		return;
	p.stuck->peer = who;
	p.stuck->meeting = at;
	__threadfence_system();
	*(volatile uint32_t *)&p.stuck->set = 1;
}

/* Wait until `flag`, which peer `who` writes, is at `at`, unless one was lost
 * before. */
__device__ inline void
peer_await(const struct dcpg_peer &p, uint32_t who, const uint32_t *flag,
    uint32_t at)
{
	const volatile uint32_t *v = flag;
	uint64_t t0;

	if ((int32_t)(peer_acquire(flag) - at) >= 0 ||
	    *(volatile uint32_t *)peer_word(p, PEER_LOST) != 0)
		return;
	t0 = now_ns();
	while ((int32_t)(*v - at) < 0)	/* acquiring would empty the L1 */
		if (now_ns() - t0 > p.limit_ns) {
			peer_give_up(p, who, at);
			return;
		}
	peer_acquire(flag);
}

/* For who looks again and again at what peer `who` sends; t0 is 0 at first. No:
 * one was lost, or is now. */
__device__ inline bool
peer_patience(const struct dcpg_peer &p, uint32_t who, uint64_t &t0)
{
	if (*(volatile uint32_t *)peer_word(p, PEER_LOST) != 0)
		return false;
	if (t0 == 0)
		t0 = now_ns();
	if (now_ns() - t0 <= p.limit_ns)
		return true;
	peer_give_up(p, who, *(volatile uint32_t *)peer_word(p, PEER_BEGUN) +
	    1);
	return false;
}

/* Words that say by themselves that they are there, where ones were. */
__device__ inline void
send_words(uint4 *to, uint4 v)
{
	asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::
	    "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ inline uint4
look_at_words(const uint4 *at)
{
	uint4 v;

	asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];" :
	    "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
	return v;
}

__device__ inline bool
has_ones(uint4 v)
{
	return max(max(v.x, v.y), max(v.z, v.w)) == ~0u;
}

__device__ inline bool
has_ones(float v)
{
	return __float_as_uint(v) == ~0u;
}

/* The same numbers, where ones, which are NaN, are another NaN. */
__device__ inline uint4
no_ones(float4 v)
{
	return make_uint4(min(__float_as_uint(v.x), ~1u),
	    min(__float_as_uint(v.y), ~1u), min(__float_as_uint(v.z), ~1u),
	    min(__float_as_uint(v.w), ~1u));
}

/* A word for a peer that says all by itself: nothing is ordered by it. */
__device__ inline void
peer_put(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(p), "l"(v) :
	    "memory");
}

__device__ inline uint64_t
peer_get(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) :
	    "memory");
	return v;
}

/*
 * A word that peer `who` puts where DCPG_NO_OFFER stands, of which v is what was
 * there when last looked; DCPG_NO_OFFER comes back if it does not. No world: it
 * is there.
 */
__device__ inline uint64_t
peer_take(const struct dcpg_peer &p, uint32_t who, const uint64_t *at,
    uint64_t v)
{
	uint64_t t0 = 0;

	for (; v == DCPG_NO_OFFER && p.world != 0; v = peer_get(at))
		if (!peer_patience(p, who, t0))
			break;
	return v;
}

/*
 * For kernels of which every block waits for n arrivals from each of the group's
 * `ranks` ranks, from `first` on: by all threads, as meet_in and meet_out.
 */
__device__ inline void
arrivals_in(const struct dcpg_peer &p, uint32_t first, uint32_t ranks,
    uint32_t n)
{
	uint32_t t = threadIdx.x;

	if (t < ranks)
		peer_await(p, first + t, peer_arrivals(p, p.self, first + t),
		    *(volatile uint32_t *)peer_word(p, PEER_TAKEN) + n);
	__syncthreads();
}

__device__ inline void
arrivals_out(const struct dcpg_peer &p, uint32_t n, uint32_t blocks)
{
	uint32_t *out = peer_word(p, PEER_OUT);

	__syncthreads();
	if (threadIdx.x != 0 || atomicAdd(out, 1) != blocks - 1)
		return;
	*out = 0;
	*(volatile uint32_t *)peer_word(p, PEER_TAKEN) += n;
}

/* By the whole of one block of at least `world` threads, once a meeting. */
__device__ inline void
meet(const struct dcpg_peer &p)
{
	volatile uint32_t *begun = peer_word(p, PEER_BEGUN);
	uint32_t t = threadIdx.x, at = *begun + 1;

	__syncthreads();
	if (t == 0)
		*begun = at;
	if (t >= p.world || t == p.self)
		return;
	peer_release(p.flags[t] + p.self * PEER_STEP, at);
	peer_await(p, t, peer_flag(p, t), at);
}

__device__ inline void
meet_in(const struct dcpg_peer &p, bool first_block)
{
	uint32_t t = threadIdx.x, at;

	if (p.world == 0)
		return;
	if (t < p.world && t != p.self) {
		at = *(volatile uint32_t *)peer_word(p, PEER_BEGUN) + 1;
		if (first_block)
			peer_release(p.flags[t] + p.self * PEER_STEP, at);
		peer_await(p, t, peer_flag(p, t), at);
	}
	__syncthreads();
}

__device__ inline void
meet_out(const struct dcpg_peer &p, uint32_t blocks)
{
	uint32_t *out = peer_word(p, PEER_OUT);

	if (p.world == 0)
		return;
	__syncthreads();
	if (threadIdx.x != 0 || atomicAdd(out, 1) != blocks - 1)
		return;
	*out = 0;
	++*(volatile uint32_t *)peer_word(p, PEER_BEGUN);
}

/* Ranks have met without flags: by every block. */
__device__ inline void
count_meeting(const struct dcpg_peer &p)
{
	if (blockIdx.x == 0 && threadIdx.x == 0)
		++*(volatile uint32_t *)peer_word(p, PEER_BEGUN);
}

}	/* namespace dcpg */

#endif
