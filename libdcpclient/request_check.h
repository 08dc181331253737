/*
 * Which values of a request make sense, apart from its sections. The client
 * library asks so that its caller gets -EINVAL at once; the daemon asks again
 * on its private copy, where a fault means that the library was bypassed.
 */
#ifndef DCP_REQUEST_CHECK_H
#define DCP_REQUEST_CHECK_H

#include <math.h>

#include "libdcpclient/dcp_ring.h"
#include "libdcpclient/dcpclient.h"

#define DCPR_MAX_STOP 256u
#define DCPR_MAX_STOP_IDS 4096u
#define DCPR_ALL_FLAGS (DCP_IGNORE_EOS | DCP_LOGPROBS | DCP_ECHO | \
	DCP_SPECIAL_TOKENS | DCP_PLAIN_INPUT | DCP_SEED | DCP_TEMPERATURE | \
	DCP_TOKENIZE | DCP_BEGIN | DCP_FIT)

/* NULL, or what is wrong. vocab: number of token ids. */
static inline const char *
dcpr_request_fault(const struct dcpr_request *r, uint32_t vocab)
{
	if (r->input < DCP_INPUT_TEXT || r->input > DCP_INPUT_TOKENS)
		return "input is none of DCP_INPUT_*";
	if (r->flags & ~(uint32_t)DCPR_ALL_FLAGS)
		return "flags has unknown bits";
	if (r->data.len == 0 && !(r->flags & DCP_TOKENIZE))
		return "the input is empty";
	if (r->flags & DCP_TOKENIZE && r->flags & DCP_LOGPROBS)
		return "DCP_TOKENIZE computes no logprobs";
	if (r->input == DCP_INPUT_TOKENS && r->data.len % 4 != 0)
		return "len of token ids is not a multiple of 4";
	if (r->flags & DCP_TEMPERATURE &&
	    !(isfinite(r->temperature) && r->temperature >= 0))
		return "temperature is negative or not a number";
	if (!(r->top_p >= 0 && r->top_p <= 1))
		return "top_p is not within 0..1";
	if (!(r->min_p >= 0 && r->min_p <= 1))
		return "min_p is not within 0..1";
	if (!(isfinite(r->repetition_penalty) && r->repetition_penalty >= 0))
		return "repetition_penalty is negative or not a number";
	if (!isfinite(r->presence_penalty) || !isfinite(r->frequency_penalty))
		return "presence_penalty or frequency_penalty is not a number";
	if (r->top_k < -1)
		return "top_k is below -1";
	if (r->top_logprobs > 0 && !(r->flags & DCP_LOGPROBS))
		return "top_logprobs needs DCP_LOGPROBS";
	if (r->top_logprobs > vocab)
		return "top_logprobs is larger than the vocabulary";
	if (r->max_tokens > 0 && r->min_tokens > r->max_tokens)
		return "min_tokens is larger than max_tokens";
	if (r->n_stop > DCPR_MAX_STOP)
		return "more than 256 stop strings";
	if (r->n_stop_ids > DCPR_MAX_STOP_IDS)
		return "more than 4096 stop ids";
	if (r->n_logit_bias > vocab)
		return "n_logit_bias is larger than the vocabulary";
	return NULL;
}

/* Index of the first id that is not below vocab, or n. */
static inline size_t
dcpr_bad_token(const uint32_t *ids, size_t n, uint32_t vocab)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (ids[i] >= vocab)
			break;
	return i;
}

#endif
