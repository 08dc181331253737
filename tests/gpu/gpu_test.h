/*
 * What the kernel test and the kernel benchmark share: random numbers, device
 * buffers that end the program when CUDA fails, work spread over host threads.
 */
#ifndef GPU_TEST_H
#define GPU_TEST_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#define CHECK(x) do {							\
	cudaError_t err_ = (x);						\
	if (err_ != cudaSuccess) {					\
		fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,	\
		    #x, cudaGetErrorString(err_));			\
		exit(1);						\
	}								\
} while (0)

#define CALL(x) do {							\
	int rc_ = (x);							\
	if (rc_ != 0) {							\
		fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__,	\
		    __LINE__, #x, strerror(-rc_),			\
		    cudaGetErrorString(cudaGetLastError()));		\
		exit(1);						\
	}								\
} while (0)

/* kernel_test.cu, of all its parts */
extern uint64_t seed;
inline bool brief;		/* few and small cases */
void verdict(bool ok, const char *what);
/* A case, for one of many threads: it launches on its own default stream. */
void later(std::function<void(void)> one);
#define STREAM cudaStreamPerThread
#define CASE(...) later([=, salt = ++salt] { __VA_ARGS__; })
void experts_tests(void);	/* experts_test.cu */
void int4_tests(void);
void rows_tests(void);		/* rows_test.cu */
void value_tests(void);		/* value_test.cu */
void query_tests(void);		/* query_test.cu */
void words_tests(void);		/* words_test.cu */

/* kernel_bench.cu: median over replays of one graph, us per launch */
double replay(int launches, const std::function<void(int, cudaStream_t)> &one);
void bench_linear(bool sweep);	/* experts_bench.cu */
void bench_experts(bool sweep);
void bench_many(void);
void bench_route(void);

/* xorshift; the same numbers everywhere for a seed. */
struct Rng {
	uint64_t s;

	explicit Rng(uint64_t seed)
	{
		s = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
		for (int i = 0; i < 4; i++)
			next();
	}

	uint64_t
	next(void)
	{
		s ^= s << 13;
		s ^= s >> 7;
		s ^= s << 17;
		return s * 0x2545f4914f6cdd1dull;
	}

	uint32_t
	below(uint32_t n)
	{
		return (uint32_t)((next() >> 32) * n >> 32);
	}

	double
	uniform(void)
	{
		return (double)(next() >> 11) * 0x1p-53;
	}

	double
	normal(void)
	{
		double u = uniform() + 0x1p-54, v = uniform();

		return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
	}
};

/* From a pool of the driver's, as most of a test's time would go by otherwise;
 * the sanitizer, which sees `brief` runs, sees the ends of buffers of their own. */
inline void *
buf_take(size_t bytes)
{
	static std::once_flag once;
	void *p;

	if (brief) {
		CHECK(cudaMalloc(&p, bytes));
		return p;
	}
	std::call_once(once, [] {
		cudaMemPool_t pool;
		uint64_t all = ~0ull;

		CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
		CHECK(cudaMemPoolSetAttribute(pool,
		    cudaMemPoolAttrReleaseThreshold, &all));
	});
	CHECK(cudaMallocAsync(&p, bytes, nullptr));
	CHECK(cudaStreamSynchronize(nullptr));
	return p;
}

inline void
buf_give(void *p)
{
	CHECK(brief ? cudaFree(p) : cudaFreeAsync(p, nullptr));
}

template <class T>
struct Buf {
	T *d = nullptr;
	size_t n = 0;

	explicit Buf(size_t count) : n(count)
	{
		d = (T *)buf_take((count ? count : 1) * sizeof(T));
	}

	explicit Buf(const std::vector<T> &h) : Buf(h.size())
	{
		put(h);
	}

	Buf(const Buf &) = delete;
	Buf &operator=(const Buf &) = delete;

	~Buf()
	{
		buf_give(d);
	}

	void
	put(const std::vector<T> &h)
	{
		CHECK(cudaMemcpy(d, h.data(), h.size() * sizeof(T),
		    cudaMemcpyHostToDevice));
	}

	std::vector<T>
	get(void) const
	{
		std::vector<T> h(n);

		CHECK(cudaMemcpy(h.data(), d, n * sizeof(T),
		    cudaMemcpyDeviceToHost));
		return h;
	}

	void
	poison(void)
	{
		CHECK(cudaMemset(d, 0xff, n * sizeof(T)));
	}
};

/* f(0) .. f(n - 1), each by the next host thread that is free. */
template <class F>
void
parallel(size_t n, F f)
{
	size_t k = std::thread::hardware_concurrency();
	std::atomic<size_t> next(0);
	std::vector<std::thread> t;

	if (k < 1)
		k = 1;
	if (k > n)
		k = n;
	for (size_t w = 0; w < k; w++)
		t.emplace_back([&] {
			for (size_t i; (i = next++) < n;)
				f(i);
		});
	for (auto &x : t)
		x.join();
}

static inline uint16_t
to_bf16(double x)
{
	return __bfloat16_as_ushort(__float2bfloat16((float)x));
}

static inline double
from_bf16(uint16_t x)
{
	return __bfloat162float(__ushort_as_bfloat16(x));
}

static inline uint8_t
to_e4m3(double x)
{
	return __nv_cvt_float_to_fp8((float)x, __NV_SATFINITE, __NV_E4M3);
}

/* Written out by hand: the reference must not lean on the tested library. */
static inline double
from_e4m3(uint8_t x)
{
	int e = x >> 3 & 15, m = x & 7;
	double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);

	if ((x & 0x7f) == 0x7f)
		return NAN;
	return x & 0x80 ? -v : v;
}

/* First digit of a score, from its definition; see digit.cuh. */
static inline uint32_t
digit_of(float x)
{
	uint16_t h;

	if (isnan(x))
		return 0;
	if (x == 0)
		x = 0;		/* -0 */
	h = __half_as_ushort(__float2half_rn(x));
	return (h & 0x8000 ? (uint16_t)~h : h | 0x8000) >> 5;
}

#endif
