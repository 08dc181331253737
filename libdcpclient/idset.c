/*
 * A set of 32-bit ids, open addressing, linear probing. The caller locks.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "libdcpclient/private.h"

static uint32_t
home(const struct idset *s, uint32_t key)
{
	return (key * 2654435761u) & (s->cap - 1);
}

static void
put(struct idset *s, uint32_t key)
{
	uint32_t i;

	for (i = home(s, key); s->slot[i] != 0; i = (i + 1) & (s->cap - 1))
		;
	s->slot[i] = key;
	s->n++;
}

int
idset_add(struct idset *s, uint32_t id)
{
	struct idset big = { .cap = s->cap ? s->cap * 2 : 64 };
	uint32_t i;

	if (s->n + 1 > s->cap / 2) {
		big.slot = calloc(big.cap, sizeof *big.slot);
		if (big.slot == NULL)
			return -ENOMEM;
		for (i = 0; i < s->cap; i++)
			if (s->slot[i] != 0)
				put(&big, s->slot[i]);
		free(s->slot);
		*s = big;
	}
	put(s, id + 1);
	return 0;
}

static uint32_t
find(const struct idset *s, uint32_t key)
{
	uint32_t i;

	if (s->cap == 0)
		return UINT32_MAX;
	for (i = home(s, key); s->slot[i] != 0; i = (i + 1) & (s->cap - 1))
		if (s->slot[i] == key)
			return i;
	return UINT32_MAX;
}

bool
idset_has(const struct idset *s, uint32_t id)
{
	return find(s, id + 1) != UINT32_MAX;
}

bool
idset_del(struct idset *s, uint32_t id)
{
	uint32_t i = find(s, id + 1), j, mask = s->cap - 1;

	if (i == UINT32_MAX)
		return false;
	/* Close the gap, so that no probe sequence is cut by it. */
	for (j = (i + 1) & mask; s->slot[j] != 0; j = (j + 1) & mask) {
		uint32_t h = home(s, s->slot[j]);

		if (((j - h) & mask) >= ((j - i) & mask)) {
			s->slot[i] = s->slot[j];
			i = j;
		}
	}
	s->slot[i] = 0;
	s->n--;
	return true;
}
