/*
 * The tensors of a model: which there are, what a checkpoint calls them and
 * what shape they have. Everything follows from struct dcpk_model.
 */
#ifndef DCPD_MODEL_TENSORS_H
#define DCPD_MODEL_TENSORS_H

#include "kernels/kernels.h"

#define DCPD_NO_EXPERT UINT32_MAX	/* as `expert`: all, packed in one */

/*
 * The name in a checkpoint, e.g. "model.layers.3.mlp.experts.7.up_proj.weight".
 * Returns its length (it always fits 128 bytes).
 */
int dcpd_tensor_name(char *buf, size_t cap, const struct dcpk_model *,
    uint32_t layer, enum dcpk_tensor, uint32_t expert);
/* Rows and columns; a vector has n = 1 (and one dimension on disk). */
void dcpd_tensor_shape(const struct dcpk_model *, enum dcpk_tensor,
    uint32_t *n, uint32_t *k);
bool dcpd_tensor_is_vector(enum dcpk_tensor);
bool dcpd_tensor_is_expert(enum dcpk_tensor);	/* E_GATE, E_UP, E_DOWN */
bool dcpd_tensor_by_head(enum dcpk_tensor);	/* Q_B, KV_B, O */
/* A matrix that quantised checkpoints quantise too. */
bool dcpd_tensor_is_linear(enum dcpk_tensor);

/*
 * Calls fn for each tensor that the model needs, in the order of a forward
 * pass; the MTP layer has the index `layers`. Stops at fn's first non-zero
 * return and returns that.
 */
typedef int dcpd_tensor_fn(void *arg, uint32_t layer, enum dcpk_tensor,
    uint32_t expert);
int dcpd_tensors_each(const struct dcpk_model *, dcpd_tensor_fn *fn,
    void *arg);

#endif
