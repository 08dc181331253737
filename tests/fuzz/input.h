/*
 * A fuzzer's input, taken byte by byte.
 */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stddef.h>

struct input {			/* bytes, then zeros */
	const unsigned char *p;
	size_t n;
};

static inline unsigned
next(struct input *in)
{
	if (in->n == 0)
		return 0;
	in->n--;
	return *in->p++;
}

#endif
