/*
 * Preloaded into a daemon, breaks a GPU under it after a while, as hardware
 * would; nothing in the daemon knows of it.
 *   GPU_FAULT="trap DEVICE SECONDS"	a kernel that traps: a sticky error
 *   GPU_FAULT="hog DEVICE SECONDS"	kernels that hold every SM for ever
 *   GPU_FAULT="product DEVICE N"	the same, before cuBLASLt's Nth product of
 *					the process: 1 to 5 are measured at start
 * The daemon's contexts are the devices' primary ones, so they are this
 * library's too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <atomic>
#include <thread>

__global__ void
trap_kernel(void)
{
	asm volatile("trap;");
}

/* As much shared memory as a block may have: one on each SM, and room for no
 * other kernel that wants any; 1024 threads twice leave no threads either. */
__global__ void
hog_kernel(volatile int *never)
{
	extern __shared__ char mem[];

	mem[threadIdx.x] = 0;
	while (*never == 0)
		;
}

static void
strike(const char *how, int dev)
{
	enum { SHARED = 100 * 1024 };
	cudaDeviceProp p;
	cudaStream_t st;
	int *never;

	if (cudaSetDevice(dev) != cudaSuccess)
		return;
	cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking);
	fprintf(stderr, "fault: %s on GPU %d\n", how, dev);
	if (strcmp(how, "trap") == 0) {
		trap_kernel<<<1, 1, 0, st>>>();
		return;
	}
	cudaGetDeviceProperties(&p, dev);
	cudaMalloc(&never, 4);
	cudaMemsetAsync(never, 0, 4, st);
	cudaFuncSetAttribute(hog_kernel,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
	hog_kernel<<<2 * p.multiProcessorCount, 1024, SHARED, st>>>(never);
}

static std::atomic<int> products;	/* until it strikes */
static int product_dev;

extern "C" cublasStatus_t
cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t op, const void *alpha,
    const void *a, cublasLtMatrixLayout_t al, const void *b,
    cublasLtMatrixLayout_t bl, const void *beta, const void *c,
    cublasLtMatrixLayout_t cl, void *d, cublasLtMatrixLayout_t dl,
    const cublasLtMatmulAlgo_t *algo, void *ws, size_t ws_bytes,
    cudaStream_t st)
{
	/* the module's own, which nobody else sees */
	static void *lib = dlopen("libcublasLt.so.13", RTLD_LAZY | RTLD_NOLOAD);
	static decltype(&cublasLtMatmul) real =
	    (decltype(&cublasLtMatmul))dlsym(lib, "cublasLtMatmul");

	if (products > 0 && --products == 0) {
		strike("hog", product_dev);
		/* its blocks are there before the product's */
		std::this_thread::sleep_for(std::chrono::seconds(1));
	}
	return real(lt, op, alpha, a, al, b, bl, beta, c, cl, d, dl, algo, ws,
	    ws_bytes, st);
}

__attribute__((constructor)) static void
begin(void)
{
	const char *s = getenv("GPU_FAULT");
	static char how[16];
	double n;
	int dev;

	if (s == NULL || sscanf(s, "%15s %d %lf", how, &dev, &n) != 3)
		return;
	if (strcmp(how, "product") == 0) {
		product_dev = dev;
		products = (int)n;
		return;
	}
	std::thread([dev, n] {
		std::this_thread::sleep_for(std::chrono::duration<double>(n));
		strike(how, dev);
	}).detach();
}
