/*
 * Is a number of a checkpoint no number? A NaN or an infinity among the weights
 * is no error anywhere: it turns answers into nonsense, of some prompts only.
 */
#ifndef DCPD_FINITE_H
#define DCPD_FINITE_H

#include "dcpd/model/safetensors.h"

/*
 * Where in p[bytes] the first element begins that is NaN or infinite; UINT64_MAX
 * if there is none, or the type has none. Any thread.
 */
uint64_t dcpd_first_not_finite(enum dcpd_st_dtype, const void *p,
    uint64_t bytes);

#endif
