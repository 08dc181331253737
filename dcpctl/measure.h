/*
 * What the measuring commands share: a clock, random numbers that are the same
 * everywhere, quantiles, and what the daemon says of itself.
 */
#ifndef DCPCTL_MEASURE_H
#define DCPCTL_MEASURE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct dcp;

double ctl_now(void);			/* monotonic, s */
/* A number from a number, all bits mixed (the finaliser of splitmix64). */
static inline uint64_t
ctl_mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t ctl_draw(uint64_t *state);	/* splitmix64 */
/* The value at rank q(n-1) of v[n], which gets sorted; 0 of none. */
double ctl_quantile(double *v, size_t n, double q);
/* Sets *vocab to the daemon's unless it was given (> 0). An exit code. */
int ctl_vocab(struct dcp *, uint32_t *vocab);
json_t *ctl_status_json(void);		/* NULL: none to be had */

#endif
