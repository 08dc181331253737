/* A model folder: its config.json, its weights, and the walk of one step. */
#ifndef DCPD_MODEL_H
#define DCPD_MODEL_H

#include "dcpd/base/base.h"
#include "dcpd/parallel/topology.h"
#include "kernels/kernels.h"

struct dcpd_model_config {
	struct dcpk_model m;
	char model_type[32];		/* "glm_moe_dsa", "deepseek_v32" */
	char name[128];			/* last part of the folder's path */
	uint32_t eos[8], n_eos;		/* of generation_config.json first */
	float def_temperature;		/* generation_config.json; 0 = greedy */
	float def_top_p;		/* 1 = off */
	int32_t def_top_k;		/* 0 = off */
	bool tied;			/* lm_head is embed_tokens */
	enum dcpk_wfmt plain;		/* of what is not quantised: dtype */
	/*
	 * quantization_config, see quant.c: "", "fp8", "w4afp8" or
	 * "compressed-tensors".
	 */
	char quant_method[32];
	uint32_t block_n, block_k;
	bool ue8m0;
	void *priv;			/* of compressed-tensors: see quant.c */
};

/*
 * path: a folder or a config.json. latent_eps_config: --latent-norm-eps config.
 * Other model types are refused by name.
 */
int dcpd_config_load(const char *path, bool latent_eps_config,
    struct dcpd_model_config *, struct dcpd_err *);
void dcpd_config_free(struct dcpd_model_config *);

enum dcpd_load_format { DCPD_LOAD_AUTO, DCPD_LOAD_DUMMY };

struct dcpd_load_options {
	enum dcpd_load_format format;
	uint64_t seed;			/* dummy */
	bool progress;			/* bar on a terminal */
	bool any_number;		/* tests: NaN and infinities are taken */
	void (*tick)(void *arg, uint64_t done, uint64_t total);	/* or NULL */
	void *tick_arg;
};

/* Every tensor, validated, sliced and handed to backend->load. */
int dcpd_weights_load(const char *dir, const struct dcpd_model_config *,
    const struct dcpk_topo *, const struct dcpk_backend *, struct dcpk_ctx *,
    const struct dcpd_load_options *, struct dcpd_err *);

/*
 * Bytes that the weights will take, from shapes and config alone: the
 * weights* fields of bytes[world], the others untouched. flags: DCPK_*, as the
 * backend will be opened with.
 */
int dcpd_weights_bytes(const struct dcpd_model_config *,
    const struct dcpk_topo *, const char *device, uint32_t flags,
    struct dcpk_bytes *);

/* Of one slice that a rank keeps; 0 for the MTP layer on CUDA. */
uint64_t dcpd_slice_bytes(const struct dcpd_model_config *,
    const struct dcpk_topo *, bool cpu, uint32_t flags, uint32_t layer,
    enum dcpk_tensor, uint32_t expert, const struct dcpd_slice *);

/*
 * Walk one step on the backend; see kernels.h. attend_ns, unless NULL: the time
 * that attend_merge took is added, as far as the host sees it.
 */
int dcpd_forward(const struct dcpk_backend *, struct dcpk_ctx *,
    const struct dcpk_model *, const struct dcpk_plan *, struct dcpk_result *,
    uint64_t *attend_ns, struct dcpd_err *);

#endif
