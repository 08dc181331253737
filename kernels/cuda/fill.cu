/*
 * Random pools for benchmarks: long contexts need not be computed to be read.
 * Values are of the size of real ones (about 1), every format's own bytes, no
 * NaN; ranks of the same place in their groups get the same. Between steps.
 */
#include "kernels/cuda/rowops.cuh"

/* A scale that makes e4m3 bytes of any exponent have an rms of about 1. */
#define FP8_SCALE (1.0f / 128)

/* Four e4m3 values: 0x7f and 0xff would be NaN, 0x7e and 0xfe are 448. */
__device__ static inline uint32_t
no_nan(uint32_t w)
{
	uint32_t nan = w & (w >> 1) & (w >> 2) & (w >> 3) & (w >> 4) &
	    (w >> 5) & (w >> 6) & 0x01010101u;

	return w ^ nan;
}

/* Two bf16 values from +-0.5 to +-2. */
__device__ static inline uint32_t
two_bf16(uint32_t w)
{
	return (w & 0x80ff80ffu) | 0x3f003f00u;
}

/*
 * words of 4 bytes: rows of `bytes` bytes, of which the first `n8` are e4m3,
 * the next `ns` f32 scales and the rest bf16.
 */
__global__ void
fill_words(uint32_t *p, uint64_t words, uint32_t bytes, uint32_t n8,
    uint32_t ns, uint64_t seed)
{
	for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
	    i < words; i += (uint64_t)gridDim.x * blockDim.x) {
		uint32_t at = (uint32_t)(i * 4 % bytes);
		uint32_t w = (uint32_t)(mix(seed + i *
		    0x9e3779b97f4a7c15ull) >> 32);

		p[i] = at < n8 ? no_nan(w) : at < n8 + ns ?
		    __float_as_uint(FP8_SCALE) : two_bf16(w);
	}
}

static int
fill_one(dcpg_rank *r, void *p, size_t bytes, uint32_t row, uint32_t n8,
    uint32_t ns, uint64_t seed)
{
	if (bytes == 0)
		return 0;
	fill_words<<<1056, 256, 0, r->st>>>((uint32_t *)p, bytes / 4, row, n8,
	    ns, seed + r->dr);
	return DCPG_LAUNCHED("fill");
}

int
dcpg_fill(dcpk_ctx *c, uint64_t seed)
{
	uint32_t lat = c->s.kv == DCPK_KV_FP8 ? c->s.model.kv_lora : 0;
	int rc = 0;

	for (uint32_t i = 0; i < c->W; i++) {
		dcpg_rank *r = &c->r[i];

		cudaSetDevice(r->dev);
		rc |= fill_one(r, r->rows, c->s.model.layers * c->pool_rows *
		    c->row_bytes, c->row_bytes, lat, lat / 128 * 4,
		    seed * 3000);
		rc |= fill_one(r, r->keys, c->full_layers * c->pool_rows *
		    c->key_bytes, c->key_bytes, c->s.idx == DCPK_KV_FP8 ?
		    c->key_bytes : 0, 0, seed * 3000 + 1000);
		if (r->scales != NULL)
			rc |= fill_one(r, r->scales, c->full_layers *
			    c->pool_rows * 4, 4, 0, 4, 0);
		rc |= dcpg_ok(cudaStreamSynchronize(r->st), "fill");
	}
	return rc;
}
