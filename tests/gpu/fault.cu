/*
 * Preloaded into a daemon, breaks a GPU under it after a while, as hardware
 * would; nothing in the daemon knows of it.
 *   GPU_FAULT="trap DEVICE SECONDS"	a kernel that traps: a sticky error
 *   GPU_FAULT="hog DEVICE SECONDS"	kernels that hold every SM for ever
 * The daemon's contexts are the devices' primary ones, so they are this
 * library's too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime.h>

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
strike(const char *how, int dev, double seconds)
{
	enum { SHARED = 100 * 1024 };
	cudaDeviceProp p;
	cudaStream_t st;
	int *never;

	std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
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

__attribute__((constructor)) static void
begin(void)
{
	const char *s = getenv("GPU_FAULT");
	static char how[16];
	double seconds;
	int dev;

	if (s != NULL && sscanf(s, "%15s %d %lf", how, &dev, &seconds) == 3)
		std::thread(strike, how, dev, seconds).detach();
}
