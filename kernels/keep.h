/*
 * In which form --device cuda keeps a weight, told to the planner and to the
 * module alike, so that the plan counts what is allocated. Pure functions.
 *
 * Matrices are bf16 whatever the checkpoint has; vectors and the router are
 * f32; the MTP layer is read past. With DCPK_FP8_WEIGHTS an FP8 tensor keeps
 * its e4m3 bytes and its scales, where its slice begins and ends at scale
 * blocks. bf16 nevertheless are kv_b_proj, which is taken apart and absorbed;
 * the embedding and the head; and under CP q_b_proj and o_proj, of which decode
 * takes views that may cut through a block.
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

#endif
