/*
 * quantization_config of a config.json: what can be read, and which format a
 * tensor is expected in. The loader itself goes by what is stored (dtype, and
 * which scales lie beside a tensor); expectations serve the memory plan and
 * dummy weights, which have no checkpoint to look at.
 */
#ifndef DCPD_MODEL_QUANT_H
#define DCPD_MODEL_QUANT_H

#include "dcpd/model/keys.h"
#include "dcpd/model/model.h"

struct dcpd_wform {
	enum dcpk_wfmt fmt;
	uint32_t block_n, block_k;	/* as in struct dcpk_weight */
};

/* Fills quant_method, block_n, block_k, ue8m0, priv. */
int dcpd_quant_read(struct dcpd_keys *, struct dcpd_model_config *);
void dcpd_quant_free(struct dcpd_model_config *);

struct dcpd_wform dcpd_quant_form(const struct dcpd_model_config *,
    uint32_t layer, enum dcpk_tensor, uint32_t expert);

/* Bytes as stored: data and scales of n x k elements in that format. */
uint64_t dcpd_wform_bytes(const struct dcpd_wform *, uint64_t n, uint64_t k);

#endif
