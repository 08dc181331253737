/*
 * In which form --device cuda keeps a weight, told to the planner and to the
 * module alike, so that the plan counts what is allocated. Pure functions.
 *
 * Matrices are bf16 whatever the checkpoint has; vectors and the router are
 * f32; the MTP layer is read past. With DCPK_FP8_WEIGHTS an FP8 tensor keeps
 * its e4m3 bytes and its scales, where its slice begins and ends at scale
 * blocks. bf16 nevertheless are kv_b_proj, which is taken apart and absorbed;
 * the embedding and the head; and under CP q_b_proj and o_proj, of which decode
 * takes views that may cut through a block. The routed experts of W4AFP8 keep
 * their int4, with DCPK_INT4_WEIGHTS, where their slice is whole tiles.
 */
#ifndef DCPK_KEEP_H
#define DCPK_KEEP_H

#include "kernels/kernels.h"

static inline bool
dcpk_keeps_f32(enum dcpk_tensor t)
{
	switch (t) {
	case DCPK_T_FINAL_NORM: case DCPK_T_IN_NORM: case DCPK_T_POST_NORM:
	case DCPK_T_Q_A_NORM: case DCPK_T_KV_A_NORM:
	case DCPK_T_IDX_K_NORM_W: case DCPK_T_IDX_K_NORM_B:
	case DCPK_T_ROUTER: case DCPK_T_ROUTER_BIAS:
		return true;
	default:
		return false;
	}
}

/* Columns of an FP8 expert that experts.cu has room for the scales of, and of a
 * linear layer linear.cu. Such a layer may have more: cuBLASLt multiplies with
 * it whatever the rows are. */
#define DCPK_FP8_EXPERT_K 65536u

/* Products that have an FP8 form: those of bf16 activations with a matrix. */
static inline bool
dcpk_keeps_fp8(uint32_t flags, uint32_t cp, enum dcpk_tensor t,
    enum dcpk_wfmt fmt, uint32_t block_n, uint32_t block_k, uint32_t n0,
    uint32_t n1, uint32_t k0, uint32_t k1)
{
	if ((flags & DCPK_FP8_WEIGHTS) == 0 || fmt != DCPK_W_FP8_BLOCK ||
	    block_n != 128 || block_k != 128 || t == DCPK_T_KV_B ||
	    t == DCPK_T_EMBED || t == DCPK_T_LM_HEAD || dcpk_keeps_f32(t) ||
	    (cp > 1 && (t == DCPK_T_Q_B || t == DCPK_T_O)))
		return false;
	if ((t == DCPK_T_E_GATE || t == DCPK_T_E_UP || t == DCPK_T_E_DOWN) &&
	    k1 - k0 > DCPK_FP8_EXPERT_K)
		return false;
	return n0 % 128 == 0 && k0 % 128 == 0 && (n1 - n0) % 16 == 0 &&
	    (k1 - k0) % 128 == 0 && n1 > n0 && k1 > k0;
}

/*
 * Scales of an FP8 matrix as cuBLASLt reads them: a row of k/128 floats for
 * each 128 rows of the matrix, rows a multiple of four floats apart.
 */
static inline uint32_t
dcpk_fp8_scale_ld(uint32_t k)
{
	return (k / 128 + 3) / 4 * 4;
}

static inline uint64_t
dcpk_fp8_bytes(uint64_t n, uint64_t k)
{
	return n * k + (n + 127) / 128 * dcpk_fp8_scale_ld((uint32_t)k) * 4;
}

/*
 * An int4 expert: tiles of 64 rows x 128 columns, those of the same rows one
 * after another. A tile is the scales of its 64 rows, f32, then 64 bytes a row
 * in the order in which the threads of experts4.cu want them.
 */
#define DCPK_INT4_SCALES 256u			/* bytes, of a tile */
#define DCPK_INT4_TILE (DCPK_INT4_SCALES + 64 * 64u)

static inline bool
dcpk_keeps_int4(uint32_t flags, enum dcpk_tensor t, enum dcpk_wfmt fmt,
    uint32_t block_k, uint32_t n0, uint32_t n1, uint32_t k0, uint32_t k1)
{
	return (flags & DCPK_INT4_WEIGHTS) != 0 && fmt == DCPK_W_INT4_PAIR &&
	    (t == DCPK_T_E_GATE || t == DCPK_T_E_UP || t == DCPK_T_E_DOWN) &&
	    block_k == 128 && k0 % 128 == 0 && (n1 - n0) % 64 == 0 &&
	    (k1 - k0) % 128 == 0 && n1 > n0 && k1 > k0;
}

static inline uint64_t
dcpk_int4_bytes(uint64_t n, uint64_t k)
{
	return n / 64 * (k / 128) * DCPK_INT4_TILE;
}

/* Where row n's scale of column k's group stands, in bytes: rows of a thread,
 * r and r + 8, beside each other. */
static inline uint64_t
dcpk_int4_scale_at(uint32_t cols, uint32_t n, uint32_t k)
{
	return ((uint64_t)(n / 64) * (cols / 128) + k / 128) * DCPK_INT4_TILE +
	    (n % 64 / 16 * 16 + n % 8 * 2 + n / 8 % 2) * 4;
}

/*
 * Where element (n, k) stands, in nibbles, the low one of a byte first. Sixteen
 * bytes are what a thread has of a row: of each 32 columns four, and four that
 * are 16 behind them, as the e4m3 fragment of wgmma wants them.
 */
static inline uint64_t
dcpk_int4_at(uint32_t cols, uint32_t n, uint32_t k)
{
	uint64_t tile = ((uint64_t)(n / 64) * (cols / 128) + k / 128) *
	    DCPK_INT4_TILE + DCPK_INT4_SCALES;
	uint32_t part = n % 64 / 8 * 32 + n % 8 * 4 + k / 4 % 4;

	return 2 * (tile + part * 16 + k / 32 % 4 * 4 + k % 4) + k / 16 % 2;
}

/* A value, -8 .. 7, as it is stored there: 0, -1, 1, -2, 2 .. */
static inline uint32_t
dcpk_int4_code(int q)
{
	return (uint32_t)(q < 0 ? -2 * q - 1 : 2 * q);
}

#endif
