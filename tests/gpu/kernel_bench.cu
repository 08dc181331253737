/*
 * How fast are the CUDA kernels? Medians of graph replays. Every launch of a
 * graph has its own key lists into a pool much larger than the L2, so rows come
 * from memory as they do in a decode step; q and outputs stay in the L2.
 *
 * kernel_bench [attend|rows|index|prefill|experts|linear|many|route|query|
 *     sweep [experts|linear]]:
 * beside each median stand the floor (the larger of bytes over measured
 * bandwidth and flops over measured rate) and, where one was measured on the
 * same chip, the anchor.
 * `sweep` prints every shape and split, the numbers behind the choice in
 * attend.cu.
 */
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"
#include "tests/gpu/gpu_test.h"

#include <algorithm>
#include <functional>

static const double HBM = 4.6e12, BF16_RATE = 788e12;

__global__ static void
fill_kernel(uint32_t *p, size_t n, uint32_t salt)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	for (; i < n; i += (size_t)gridDim.x * blockDim.x) {
		uint32_t x = (uint32_t)i * 2654435761u ^ salt;

		x ^= x >> 16;
		x *= 0x7feb352d;
		x ^= x >> 15;
		x *= 0x846ca68b;
		x ^= x >> 16;
		p[i] = x;
	}
}

/* Plausible packed rows: random e4m3 (no NaN), scales near 1/448, rope. */
__global__ static void
tame_rows(uint8_t *pool, size_t rows, bool bf16)
{
	size_t r = blockIdx.x;

	for (; r < rows; r += gridDim.x) {
		uint8_t *p = pool + r * (bf16 ? 1152 : 656);
		uint16_t *b = (uint16_t *)(bf16 ? p : p + 528);

		for (int i = threadIdx.x; !bf16 && i < 512; i += blockDim.x)
			p[i] = (p[i] & 0x7f) == 0x7f ? 0x38 : p[i];
		if (!bf16 && threadIdx.x < 4)
			((float *)(p + 512))[threadIdx.x] =
			    (1 + (p[threadIdx.x] & 7)) / 448.0f / 64;
		for (int i = threadIdx.x; i < (bf16 ? 576 : 64);
		    i += blockDim.x)
			b[i] = (b[i] & 0x81ff) | 0x3e00;
	}
}

__global__ static void
tame_keys(uint8_t *keys, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	for (; i < n; i += (size_t)gridDim.x * blockDim.x)
		if ((keys[i] & 0x7f) == 0x7f)
			keys[i] = 0x30;
}

double
replay(int launches, const std::function<void(int, cudaStream_t)> &one)
{
	cudaStream_t s;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t a, b;
	std::vector<float> t;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaEventCreate(&a));
	CHECK(cudaEventCreate(&b));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < launches; i++)
		one(i, s);
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 15; i++) {
		float ms;

		CHECK(cudaEventRecord(a, s));
		CHECK(cudaGraphLaunch(exec, s));
		CHECK(cudaEventRecord(b, s));
		CHECK(cudaStreamSynchronize(s));
		CHECK(cudaEventElapsedTime(&ms, a, b));
		if (i >= 4)
			t.push_back(ms * 1000 / launches);
	}
	std::sort(t.begin(), t.end());
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaEventDestroy(a));
	CHECK(cudaEventDestroy(b));
	CHECK(cudaStreamDestroy(s));
	return t[t.size() / 2];
}

/* --- attention ----------------------------------------------------------- */

struct Bed {
	uint32_t pool_rows = 3000000;
	bool bf16;
	Buf<uint8_t> pool;
	Buf<uint16_t> q, out;
	Buf<float> lse;
	Buf<uint32_t> list, count;
	Buf<uint8_t> work;

	explicit Bed(bool bf) : bf16(bf),
	    pool((size_t)pool_rows * (bf ? 1152 : 656)),
	    q((size_t)128 * 128 * 576), out((size_t)128 * 128 * 512),
	    lse(128 * 128), list((size_t)512 * 2048 * 128), count(128),
	    work(DCPG_ATTEND_WORK)
	{
		Rng g(7);

		work.poison();
		std::vector<uint16_t> hq(q.n);
		std::vector<uint32_t> hl(list.n);

		fill_kernel<<<1024, 256>>>((uint32_t *)pool.d, pool.n / 4, 1);
		tame_rows<<<4096, 128>>>(pool.d, pool_rows, bf16);
		CHECK(cudaDeviceSynchronize());
		for (auto &x : hq)
			x = to_bf16(g.uniform() * 2 - 1);
		for (auto &x : hl)
			x = g.below(pool_rows);
		q.put(hq);
		list.put(hl);
	}
};

/* even: every row has `keys`; else a rank's share of twice as many, of which
 * each is one of two ranks'. */
static double
time_attend(Bed &b, uint32_t heads, uint32_t keys, uint32_t rows,
    uint32_t shape, uint32_t splits, uint32_t team, bool even = true)
{
	size_t bytes = (size_t)rows * keys * (b.bf16 ? 1152 : 656);
	int sets = (int)std::min<size_t>(512, 160000000 / bytes + 4);
	struct dcpg_attend a = {};

	std::vector<uint32_t> count(128, keys);
	uint32_t most = even ? keys : 2 * keys;
	Rng g(keys + rows);

	for (uint32_t &n : count)
		for (uint32_t i = n = even ? keys : 0; i < most; i++)
			n += g.below(2);
	b.count.put(count);
	a.q = b.q.d;
	a.pool = b.pool.d;
	a.count = b.count.d;
	a.out = b.out.d;
	a.lse = b.lse.d;
	a.work = b.work.d;
	a.rows = rows;
	a.heads = heads;
	a.list_stride = a.max_count = most;
	a.expected = keys;
	a.kv = b.bf16 ? DCPK_KV_BF16 : DCPK_KV_FP8;
	a.scale = 0.1352337f;
	a.shape = shape;
	a.splits = splits;
	a.team = team;
	return replay(sets, [&](int i, cudaStream_t s) {
		a.list = b.list.d + (size_t)i * rows * most;
		CALL(dcpg_attend(&a, s));
	});
}

static double
attend_floor(bool bf16, uint32_t heads, uint32_t keys, uint32_t rows)
{
	double bytes = (double)rows * keys * (bf16 ? 1152 : 656) +
	    (double)rows * heads * (1152 + 1024);
	double flops = (double)rows * heads * keys * 2176;

	return std::max(bytes / HBM, flops / BF16_RATE) * 1e6;
}

/* FlashMLA 9241ae3, packed fp8, same chip, 2026-11-29; us; b = 1 8 32 64 128 */
static const struct {
	uint32_t heads, keys;
	double us[5];
} anchors[] = {
	{ 128, 2048, { 17.6, 26.2, 62.3, 92.8, 182 } },
	{ 128, 1024, { 13.6, 19.8, 44.8, 51.6, 99.3 } },
	{ 128, 512, { 11.7, 15.1, 30.8, 30.4, 57.9 } },
	{ 128, 256, { 11.0, 13.9, 17.4, 19.8, 36.5 } },
	{ 64, 2048, { 17.9, 21.4, 46.8, 75.2, 114 } },
	{ 64, 1024, { 14.2, 17.3, 30.9, 53.9, 62.4 } },
	{ 64, 256, { 11.3, 12.3, 19.4, 20.1, 22.9 } },
	{ 32, 2048, { 0 } }, { 32, 256, { 0 } },
	{ 16, 2048, { 0 } }, { 16, 256, { 0 } },
	{ 8, 2048, { 0 } }, { 8, 256, { 0 } },
};
static const uint32_t batches[5] = { 1, 8, 32, 64, 128 };

/* Lists as they are of two ranks: counts differ from row to row. */
static void
bench_shares(Bed &bed)
{
	printf("attention, a rank's share of 2048 keys, 1024 +- 23, us; beside "
	    "it 1024 of every row\n");
	for (uint32_t heads : { 128u, 64u })
		for (uint32_t rows : { 1u, 8u, 32u, 64u })
			printf("H=%-3u share b=%-3u %7.2f %7.2f\n", heads, rows,
			    time_attend(bed, heads, 1024, rows, 0, 0, 0, false),
			    time_attend(bed, heads, 1024, rows, 0, 0, 0));
}

static void
bench_attend(bool bf16, bool sweep)
{
	Bed bed(bf16);
	enum dcpk_kv kv = bf16 ? DCPK_KV_BF16 : DCPK_KV_FP8;
	struct dcpg_attend_shape sh;

	for (uint32_t i = 0; sweep && dcpg_attend_shape(kv, i, &sh); i++)
		for (uint32_t n = 1; n <= DCPG_MAX_TEAM; n++)
			printf("%s%d%s", n > 1 ? " " : "teams that fit, of "
			    "1.. blocks: ", sh.fit[n], n == DCPG_MAX_TEAM ?
			    "\n" : "");

	printf("attention, %s rows, us (x floor, x anchor)\n",
	    bf16 ? "bf16" : "packed fp8");
	for (const auto &an : anchors)
		for (int i = 0; i < 5; i++) {
			double t = time_attend(bed, an.heads, an.keys,
			    batches[i], 0, 0, 0), best = 1e9;
			double f = attend_floor(bf16, an.heads, an.keys,
			    batches[i]);

			printf("H=%-3u keys=%-4u b=%-3u %7.2f floor %6.2f "
			    "(%.2fx)", an.heads, an.keys, batches[i], t, f,
			    t / f);
			if (!bf16 && an.us[i] > 0)
				printf(" anchor %6.1f (%.2fx)", an.us[i],
				    t / an.us[i]);
			for (uint32_t j = 0; sweep &&
			    dcpg_attend_shape(kv, j, &sh); j++)
				for (uint32_t x = 0; x < 2 * sh.splits; x++) {
					uint32_t s = x / 2 + 1, m = x % 2 + 1;
					uint32_t n = batches[i] * an.heads /
					    sh.heads / m;

					if (sh.heads * m > an.heads ||
					    (int)(n * s) > sh.fit[m] *
					    (s == 1 ? 2 : 1))
						continue;
					t = time_attend(bed, an.heads, an.keys,
					    batches[i], j + 1, s, m);
					printf(" %u/%u*%u*%u:%.2f", sh.heads,
					    sh.groups, s, m, t);
					best = std::min(best, t);
				}
			if (sweep)
				printf(" best %.2f", best);
			printf("\n");
			fflush(stdout);
		}
	if (!sweep)
		bench_shares(bed);
}

/* As in prefill: query rows by the thousand over the keys of one request. Also
 * by force in each kind of blocks. */
static void
bench_attend_rows(bool bf16)
{
	constexpr uint32_t ROWS = 2048, K = 2048, TURN = 128;
	Bed bed(bf16);
	enum dcpk_kv kv = bf16 ? DCPK_KV_BF16 : DCPK_KV_FP8;
	Buf<uint16_t> q((size_t)ROWS * 128 * 576), out((size_t)ROWS * 128 *
	    512);
	Buf<float> lse(ROWS * 128);
	Buf<uint32_t> list((size_t)ROWS * K), count(ROWS);
	std::vector<uint32_t> l(list.n), n(ROWS, K);
	struct dcpg_attend_shape sh;
	struct dcpg_attend a = {};
	Rng g(11);

	for (uint32_t i = 0; i < ROWS / TURN; i++)
		CHECK(cudaMemcpy(q.d + i * bed.q.n, bed.q.d, bed.q.n * 2,
		    cudaMemcpyDeviceToDevice));
	count.put(n);
	a.q = q.d;
	a.pool = bed.pool.d;
	a.list = list.d;
	a.count = count.d;
	a.out = out.d;
	a.lse = lse.d;
	a.rows = ROWS;
	a.list_stride = a.max_count = K;
	a.kv = kv;
	a.scale = 0.1352337f;
	for (uint32_t keys : { 32768u, 131072u }) {
		for (auto &x : l)
			x = g.below(keys);
		list.put(l);
		for (uint32_t heads : { 128u, 64u, 32u, 16u }) {
			double flops = (double)ROWS * heads * K * 2176, t;

			a.heads = heads;
			a.shape = 0;
			t = replay(2, [&](int, cudaStream_t s) {
				CALL(dcpg_attend(&a, s));
			});
			printf("attention of %u rows, %s, %u heads, %u keys of "
			    "%u: %.0f us, %.0f TFLOP/s;", ROWS, bf16 ? "bf16" :
			    "fp8", heads, K, keys, t, flops / t * 1e-6);
			for (a.shape = 1; dcpg_attend_shape(kv, a.shape - 1,
			    &sh); a.shape++)
				if (sh.heads <= heads && sh.heads >= 16)
					printf(" %u/%u:%.0f", sh.heads,
					    sh.groups, replay(2,
					    [&](int, cudaStream_t s) {
						CALL(dcpg_attend(&a, s));
					}));
			printf("\n");
			fflush(stdout);
		}
	}
}

/* --- indexer ------------------------------------------------------------- */

/* DeepGEMM 54e2261 scores and FlashInfer fb28d72 top-2048; as above. */
static const struct {
	uint32_t len;
	double score[5], topk[5];
} index_anchors[] = {
	{ 8192, { 3.5, 5.6, 12.6, 21.7, 38.9 },
	    { 8.8, 9.0, 10.0, 10.3, 10.9 } },
	{ 32768, { 4.4, 12.6, 38.8, 73.6, 141 },
	    { 18.6, 20.2, 20.9, 21.5, 22.6 } },
	{ 131072, { 8.2, 39.3, 141, 276, 560 },
	    { 38.9, 40.7, 51.0, 51.8, 62.6 } },
};

/* 64 heads, D = 1; keys from pages all over a pool of 4 GB. */
static void
bench_index(void)
{
	const uint32_t pages = 500000, H = 64, k = 2048;
	Buf<uint8_t> keys((size_t)pages * 64 * 128), q8(128 * H * 128);
	Buf<float> ks((size_t)pages * 64), w(128 * H);
	Buf<float> score((size_t)128 * 131072);
	Buf<uint32_t> hist(128 * DCPG_BINS), list(128 * k), count(128);
	Buf<uint32_t> table((size_t)16 * 128 * 2048), at(128), len(128);
	Rng g(3);

	fill_kernel<<<1024, 256>>>((uint32_t *)keys.d, keys.n / 4, 9);
	std::vector<uint8_t> hq(q8.n);
	std::vector<float> hw(w.n), hk(ks.n);
	std::vector<uint32_t> ht(table.n), ha(128);
	for (auto &x : hq)
		x = to_e4m3(g.normal() * 100);
	for (auto &x : hw)
		x = (float)g.normal() / 448;
	for (auto &x : hk)
		x = (float)(1 + g.uniform()) / 448;
	for (auto &x : ht)
		x = g.below(pages);
	q8.put(hq);
	w.put(hw);
	ks.put(hk);
	table.put(ht);
	/* e4m3 NaN bytes would make every score NaN. */
	tame_keys<<<4096, 256>>>(keys.d, keys.n);
	CHECK(cudaDeviceSynchronize());
	printf("indexer, 64 heads, k = 2048, us (x floor, x anchor)\n");
	for (const auto &an : index_anchors)
		for (int i = 0; i < 5; i++) {
			uint32_t b = batches[i], L = an.len;
			size_t bytes = (size_t)b * L * 132;
			int sets = (int)std::min<size_t>(16,
			    200000000 / bytes + 2);
			struct dcpg_index_score a = { q8.d, w.d, keys.d, ks.d,
			    table.d, at.d, len.d, score.d, hist.d, b, H, L, L,
			    64 };
			struct dcpg_select s = { score.d, hist.d, table.d,
			    at.d, len.d, list.d, count.d, b, L, L, k, 64, k, 0,
			    1, hist.d };

			for (uint32_t r = 0; r < 128; r++)
				ha[r] = r * (L / 64);
			at.put(ha);
			len.put(std::vector<uint32_t>(128, L));
			auto scores = [&](int j, cudaStream_t st) {
				a.table = table.d + (size_t)j * b * (L / 64);
				CALL(dcpg_index_score(&a, st));
			};
			double ts = replay(sets, scores);
			CHECK(cudaMemset(hist.d, 0, hist.n * 4));
			double tt = replay(sets, [&](int j, cudaStream_t st) {
				scores(j, st);
				CALL(dcpg_select(&s, st));
			});
			/* Alone: the histogram of the last scores stays. */
			CHECK(cudaMemset(hist.d, 0, hist.n * 4));
			scores(0, nullptr);
			s.clear = nullptr;
			double tk = replay(sets, [&](int, cudaStream_t st) {
				CALL(dcpg_select(&s, st));
			});
			double f = (bytes + 8.0 * b * L) / HBM * 1e6;
			double both = an.score[i] + an.topk[i];

			printf("L=%-6u b=%-3u scores %7.2f (%.2fx anchor) "
			    "select %6.2f (%.2fx); all %7.2f floor %6.2f "
			    "(%.2fx) anchors %6.1f (%.2fx)\n", L, b, ts,
			    ts / an.score[i], tk, tk / an.topk[i], tt, f,
			    tt / f, both, tt / both);
			fflush(stdout);
		}
	/* As many keys, of which a rank of D has 64 / D of a page. */
	for (uint32_t b : { 1u, 8u, 32u })
		for (uint32_t L : { 4096u, 65536u }) {
			int sets = (int)std::min<size_t>(16, 200000000 /
			    ((size_t)b * L * 132) + 2);

			len.put(std::vector<uint32_t>(128, L));
			printf("scores of a rank of D = 1, 2, 4, 8, L=%u b=%u:",
			    L, b);
			for (uint32_t P = 64; P >= 8; P /= 2) {
				struct dcpg_index_score a = { q8.d, w.d,
				    keys.d, ks.d, table.d, at.d, len.d, score.d,
				    hist.d, b, H, L, L, P };

				for (uint32_t r = 0; r < 128; r++)
					ha[r] = r * (L / P);
				at.put(ha);
				printf(" %.2f", replay(sets, [&](int j,
				    cudaStream_t st) {
					a.table = table.d + (size_t)j * b *
					    (L / P);
					CALL(dcpg_index_score(&a, st));
				}));
			}
			printf(" us\n");
			fflush(stdout);
		}
}

/* --- prefill ------------------------------------------------------------- */

/* What the fp8 tensor cores do when nothing else is asked: 64 x 64 x 128
 * products from registers and shared memory, as in index_rows.cu. */
__global__ static void __launch_bounds__(512, 1)
rate_kernel(const uint32_t *a, float *out, int rounds)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	uint32_t x[16];
	float d[32] = { 0 };

	for (int i = threadIdx.x; i < 2048; i += 512)
		((uint32_t *)mem)[i] = a[i];
	for (int i = 0; i < 16; i++)
		x[i] = a[2048 + i * 512 + threadIdx.x];
	dcpg::fence_async();
	__syncthreads();
	for (int r = 0; r < rounds; r++) {
		dcpg::wg_pin(d);
		dcpg::wg_fence();
		for (int i = 0; i < 8; i++)
			dcpg::Mma8<64>::run(d, x + i % 4 * 4,
			    dcpg::desc128(dcpg::smem_addr(mem)) + i % 4 * 2,
			    1);
		dcpg::wg_commit();
		dcpg::wg_wait<0>();
		dcpg::wg_pin(d);
	}
	out[blockIdx.x * 512 + threadIdx.x] = d[0] + d[31];
}

static double
fp8_rate(void)
{
	Buf<uint32_t> a(2048 + 16 * 512);
	Buf<float> out(132 * 512);
	int rounds = 4000;

	fill_kernel<<<64, 256>>>(a.d, a.n, 5);
	tame_keys<<<64, 256>>>((uint8_t *)a.d, a.n * 4);
	CHECK(cudaDeviceSynchronize());
	double us = replay(1, [&](int, cudaStream_t s) {
		rate_kernel<<<132, 512, 8192, s>>>(a.d, out.d, rounds);
	});
	return 132.0 * 4 * rounds * 2 * (2.0 * 64 * 64 * 128) / us * 1e6;
}

/* A pass of n query rows, `step` apart, behind a prefix: scores, first digits
 * and selection in slices of at most 256 MB of scores. */
static void
bench_prefill(void)
{
	const uint32_t most = 131072 + 4096, k = 2048, pages = most / 64;
	const size_t room = 64 << 20;
	static const struct { uint32_t n, step, prefix, heads; } cells[] = {
		{ 4096, 1, 32768, 64 }, { 512, 8, 32768, 64 },
		{ 4096, 1, 0, 64 }, { 4096, 1, 8192, 64 },
		{ 4096, 1, 131072, 64 }, { 512, 8, 131072, 64 },
		{ 4096, 1, 32768, 32 }, { 512, 8, 131072, 32 },
	};
	Buf<uint8_t> keys((size_t)most * 128), q8((size_t)4096 * 8192);
	Buf<float> ks(most), w(4096 * 64), score(room);
	Buf<uint32_t> hist((size_t)4096 * DCPG_BINS), table(pages), len(4096);
	Buf<uint32_t> zero(4096), list((size_t)4096 * k), count(4096);
	Rng g(3);
	std::vector<float> hw(w.n), hk(ks.n);
	std::vector<uint32_t> ht(pages);
	double rate = fp8_rate();

	for (auto &x : hw)
		x = (float)g.normal() / 448;
	for (auto &x : hk)
		x = (float)(1 + g.uniform()) / 448;
	for (uint32_t i = 0; i < pages; i++)
		ht[i] = i;
	for (uint32_t i = pages - 1; i > 0; i--)
		std::swap(ht[i], ht[g.below(i + 1)]);
	w.put(hw);
	ks.put(hk);
	table.put(ht);
	CHECK(cudaMemset(zero.d, 0, zero.n * 4));
	fill_kernel<<<1024, 256>>>((uint32_t *)keys.d, keys.n / 4, 9);
	tame_keys<<<4096, 256>>>(keys.d, keys.n);
	fill_kernel<<<1024, 256>>>((uint32_t *)q8.d, q8.n / 4, 11);
	tame_keys<<<4096, 256>>>(q8.d, q8.n);
	CHECK(cudaDeviceSynchronize());
	printf("prefill: fp8 products alone %.0f TFLOP/s, the rate of the "
	    "floor; us\n", rate * 1e-12);
	for (const auto &c : cells) {
		uint32_t keys_n = c.prefix + c.n * c.step;
		uint32_t slice = std::min<size_t>(c.n, room / keys_n);
		std::vector<uint32_t> hl(4096);
		double flops = 0;

		for (uint32_t i = 0; i < c.n; i++) {
			hl[i] = c.prefix + (i + 1) * c.step;
			flops += hl[i] <= k ? 0 : hl[i] * 256.0 * c.heads;
		}
		len.put(hl);
		auto run = [&](int what, cudaStream_t st) {
			struct dcpg_index_rows a = {};
			struct dcpg_select s = {};

			a.keys = keys.d;
			a.kscale = ks.d;
			a.table = s.table = table.d;
			a.score = score.d;
			s.score = score.d;
			a.hist = hist.d;
			s.hist = hist.d;
			a.heads = c.heads;
			a.q_step = 1;
			a.stride = s.stride = s.max_len = (keys_n + 3) & ~3u;
			a.page_rows = s.page_rows = 64;
			a.least = k;
			s.table_at = zero.d;
			s.list_stride = s.k = k;
			s.ranks = 1;
			for (uint32_t i = 0; i < c.n; i += slice) {
				a.rows = s.rows = std::min(slice, c.n - i);
				a.q8 = q8.d + (size_t)i * c.heads * 128;
				a.w = w.d + (size_t)i * c.heads;
				a.len = s.len = len.d + i;
				a.keys_n = hl[i + a.rows - 1];
				s.list = list.d + (size_t)i * k;
				s.count = count.d + i;
				if (what & 1)
					CALL(dcpg_index_rows(&a, st));
				if (what & 2)
					CALL(dcpg_index_count(&a, st));
				if (what & 4)
					CALL(dcpg_select(&s, st));
			}
		};
		auto time = [&](int what) {
			return replay(1, [&](int, cudaStream_t st) {
				run(what, st);
			});
		};
		double t = time(1), all = time(7), floor = flops / rate * 1e6;

		printf("rows %u step %u after %u, H=%u: scores %.0f (%.0f "
		    "TFLOP/s, floor %.0f, %.2fx) first digits %.0f selection "
		    "%.0f all %.0f\n", c.n, c.step, c.prefix, c.heads, t,
		    flops / t * 1e-6, floor, t / floor, time(2), time(4), all);
		fflush(stdout);
	}
}

/* --- decode's queries ---------------------------------------------------- */

/* Each launch has its own weights: in a graph they are fetched while the launch
 * before still runs. */
static void
bench_query(void)
{
	static const struct {
		uint32_t heads, nope;
	} shapes[] = { { 32, 192 }, { 64, 128 }, { 8, 192 }, { 16, 128 } };
	const uint32_t most = 128, sets = 40;

	for (auto &c : shapes) {
		size_t one = (size_t)c.heads * 512 * c.nope;
		Buf<uint16_t> w(one * sets), q((size_t)most * c.heads * 576);
		Buf<uint16_t> x((size_t)most * c.heads * (c.nope + 64));
		Buf<float> angles((size_t)most * 32);
		struct dcpg_query a = {};

		for (auto *b : { &w, &x })
			CHECK(cudaMemset(b->d, 0, b->n * 2));
		CHECK(cudaMemset(angles.d, 0, angles.n * 4));
		a.x = x.d;
		a.cos = a.sin = angles.d;
		a.to[0] = q.d;
		a.heads = c.heads;
		a.nope = c.nope;
		a.step = c.heads * 576;
		a.ranks = 1;
		for (uint32_t rows : { 1u, 8u, 32u, 64u, 128u }) {
			printf("queries rows %u, %u heads of %u+64, floor "
			    "%.1f:", rows, c.heads, c.nope, (double)one * 2 /
			    HBM * 1e6);
			a.rows = rows;
			for (uint32_t cols : { 64u, 128u }) {
				a.cols = cols;
				printf(" %.2f (%u)", replay(200,
				    [&](int i, cudaStream_t s) {
					a.w = w.d + i % sets * one;
					CALL(dcpg_query(&a, s));
				}), cols);
			}
			printf(" us\n");
			fflush(stdout);
		}
	}
}

int
main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	CALL(dcpg_init());
	if (strcmp(what, "sweep") == 0) {
		if (argc > 2 && strcmp(argv[2], "experts") == 0)
			bench_experts(true);
		else if (argc > 2 && strcmp(argv[2], "linear") == 0)
			bench_linear(true);
		else
			bench_attend(argc > 2 && strcmp(argv[2], "bf16") == 0,
			    true);
		return 0;
	}
	if (*what == '\0' || strcmp(what, "rows") == 0) {
		bench_attend_rows(false);
		bench_attend_rows(true);
	}
	if (*what == '\0' || strcmp(what, "prefill") == 0)
		bench_prefill();
	if (*what == '\0' || strcmp(what, "attend") == 0) {
		bench_attend(false, false);
		bench_attend(true, false);
	}
	if (*what == '\0' || strcmp(what, "index") == 0)
		bench_index();
	if (*what == '\0' || strcmp(what, "route") == 0)
		bench_route();
	if (*what == '\0' || strcmp(what, "query") == 0)
		bench_query();
	if (*what == '\0' || strcmp(what, "many") == 0)
		bench_many();
	if (*what == '\0' || strcmp(what, "linear") == 0)
		bench_linear(false);
	if (*what == '\0' || strcmp(what, "experts") == 0)
		bench_experts(false);
	return 0;
}
