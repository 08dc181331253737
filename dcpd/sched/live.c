/*
 * All requests that are live, from submit to the last reference: in a list, by
 * id, how many each user has, and which of them something was asked of (cancel,
 * death, a stop string). Nothing here walks them all, so what one client does
 * costs the same however many others have.
 *
 * The lock is held throughout.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "dcpd/sched/sched_i.h"

#define UID_BUCKETS 256u

struct uid_use {		/* of a user that has requests */
	struct uid_use *next;
	uid_t uid;
	uint32_t n;
};

/* Ids count up, so the low bits spread them best. */
static struct req **
bucket_of(const struct dcpd_sched *s, uint64_t id)
{
	return &s->by_id[id & (s->n_by_id - 1)];
}

static struct uid_use **
uid_at(const struct dcpd_sched *s, uid_t uid)
{
	struct uid_use **u = &s->by_uid[(uid ^ uid >> 8) % UID_BUCKETS];

	while (*u != NULL && (*u)->uid != uid)
		u = &(*u)->next;
	return u;
}

int
dcpd_live_open(struct dcpd_sched *s)
{
	s->n_by_id = 64;
	while (s->n_by_id < s->c.engine->max_running &&
	    s->n_by_id < 1u << 20)
		s->n_by_id *= 2;
	while (s->n_by_id < s->c.queue_max && s->n_by_id < 1u << 20)
		s->n_by_id *= 2;
	s->by_id = calloc(s->n_by_id, sizeof *s->by_id);
	s->by_uid = calloc(UID_BUCKETS, sizeof *s->by_uid);
	return s->by_id == NULL || s->by_uid == NULL ? -ENOMEM : 0;
}

void
dcpd_live_close(struct dcpd_sched *s)
{
	free(s->by_uid);
	free(s->by_id);
}

uint32_t
dcpd_live_of_uid(const struct dcpd_sched *s, uid_t uid)
{
	const struct uid_use *u = *uid_at(s, uid);

	return u == NULL ? 0 : u->n;
}

/* A plugin's count for no user: it speaks for many. */
static int
count_uid(struct dcpd_sched *s, const struct req *r)
{
	struct uid_use **at = uid_at(s, r->sub->uid), *u = *at;

	if (r->sub->own)
		return 0;
	if (u == NULL) {
		u = calloc(1, sizeof *u);
		if (u == NULL)
			return -ENOMEM;
		u->uid = r->sub->uid;
		*at = u;
	}
	u->n++;
	return 0;
}

int
dcpd_live_add(struct dcpd_sched *s, struct req *r)
{
	struct req **b = bucket_of(s, r->sub->id);

	if (count_uid(s, r) != 0)
		return -ENOMEM;
	r->inext = *b;
	*b = r;
	r->next = s->live;
	if (s->live != NULL)
		s->live->prev = r;
	s->live = r;
	s->n_live++;
	return 0;
}

/* Out of a list by its links: there is one of ids, one of asked ones. */
static void
unlink_asked(struct dcpd_sched *s, struct req *r)
{
	struct req **at = &s->asked;

	if (!r->in_asked)
		return;
	while (*at != r)
		at = &(*at)->anext;
	*at = r->anext;
	r->in_asked = false;
}

void
dcpd_live_remove(struct dcpd_sched *s, struct req *r)
{
	struct req **b = bucket_of(s, r->sub->id);
	struct uid_use **at = uid_at(s, r->sub->uid), *u = *at;

	while (*b != r)
		b = &(*b)->inext;
	*b = r->inext;
	if (r->next != NULL)
		r->next->prev = r->prev;
	if (r->prev != NULL)
		r->prev->next = r->next;
	else
		s->live = r->next;
	s->n_live--;
	unlink_asked(s, r);
	if (!r->sub->own && --u->n == 0) {
		*at = u->next;
		free(u);
	}
}

struct req *
dcpd_live_find(const struct dcpd_sched *s, const struct dcpd_client *client,
    uint64_t id)
{
	struct req *r = *bucket_of(s, id);

	while (r != NULL && !(r->sub->id == id &&
	    (client == NULL || r->sub->client == client)))
		r = r->inext;
	return r;
}

void
dcpd_live_ask(struct dcpd_sched *s, struct req *r)
{
	if (r->in_asked)
		return;
	r->in_asked = true;
	r->anext = s->asked;
	s->asked = r;
}

struct req *
dcpd_live_asked(struct dcpd_sched *s)
{
	struct req *r = s->asked;

	if (r != NULL) {
		s->asked = r->anext;
		r->in_asked = false;
	}
	return r;
}
