/* Where a tensor of the model lies in a checkpoint, and in which format. */
#ifndef DCPD_MODEL_SOURCE_H
#define DCPD_MODEL_SOURCE_H

#include "dcpd/model/model.h"
#include "dcpd/model/quant.h"
#include "dcpd/model/safetensors.h"

struct dcpd_extent {			/* bytes of one stored tensor */
	const struct dcpd_st_tensor *t;	/* NULL: none */
	uint64_t off, bytes;
};

struct dcpd_source {
	struct dcpd_wform form;
	struct dcpd_extent data, scale, zero, g_idx;
	bool half;			/* data is F16; form says F32 */
	bool scale_bf16;
	uint64_t bytes;			/* of all extents */
};

/*
 * Shapes are checked against the config; stored tensors that serve are marked
 * used. -ENOENT, without a text, if the checkpoint has no such tensor.
 */
int dcpd_source_find(const struct dcpd_st *, const struct dcpd_model_config *,
    uint32_t layer, enum dcpk_tensor, uint32_t expert, struct dcpd_source *,
    struct dcpd_err *);
/* W4AFP8: the tensor's own input_scale, 0 if it has none. */
int dcpd_source_act_scale(const struct dcpd_st *, const struct dcpk_model *,
    uint32_t layer, enum dcpk_tensor, uint32_t expert, float *,
    struct dcpd_err *);

#endif
