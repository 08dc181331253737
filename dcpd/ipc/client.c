/*
 * A client's life from WELCOME to its last reference, the table of its live
 * requests, and the quotas of its uid. Dropping happens on the intake thread
 * alone; any thread may hold a reference.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "dcpd/ipc/ipc_internal.h"

/* --- quotas --- */

static uint32_t
times(uint32_t n, uint32_t by)
{
	return (uint32_t)dcpd_min64((uint64_t)n * by, UINT32_MAX);
}

static void
set_limits(const struct dcpd_ipc_config *cfg, struct uid_use *u)
{
	uint32_t by = u->own ? cfg->own_times : 1;

	u->max_clients = times(cfg->max_clients_uid, by);
	u->max_requests = times(cfg->max_requests_uid, by);
	u->max_bytes = cfg->max_bytes_uid > UINT64_MAX / by ? UINT64_MAX :
	    cfg->max_bytes_uid * by;
}

void
uid_relimit(struct dcpd_ipc *ipc)
{
	for (struct uid_use *u = ipc->uids; u != NULL; u = u->next)
		set_limits(&ipc->cfg, u);
}

/*
 * A client in this very process is a plugin, which carries the requests of
 * many users: it has an account of its own, with larger quotas.
 */
struct uid_use *
uid_find(struct dcpd_ipc *ipc, const struct ucred *cred)
{
	bool own = cred->pid == getpid();
	struct uid_use *u;

	for (u = ipc->uids; u != NULL; u = u->next)
		if (u->uid == cred->uid && u->own == own)
			return u;
	u = calloc(1, sizeof *u);
	if (u == NULL)
		return NULL;
	u->uid = cred->uid;
	u->own = own;
	set_limits(&ipc->cfg, u);
	u->next = ipc->uids;
	ipc->uids = u;
	return u;
}

bool
uid_charge(const struct dcpd_client *c, uint64_t bytes)
{
	const uint64_t max = c->use->max_bytes;
	uint64_t now = atomic_load(&c->use->bytes);

	do {
		if (bytes > max || now > max - bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&c->use->bytes, &now,
	    now + bytes));
	return true;
}

void
uid_discharge(const struct dcpd_client *c, uint64_t bytes)
{
	uint64_t was = atomic_fetch_sub(&c->use->bytes, bytes);

	DCPD_ASSERT(was >= bytes);
}

/* --- live requests --- */

static struct live **
live_slot(struct dcpd_client *c, uint64_t id)
{
	struct live **p = &c->live[id % LIVE_BUCKETS];

	while (*p != NULL && (*p)->id != id)
		p = &(*p)->next;
	return p;
}

struct live *
live_find(const struct dcpd_client *c, uint64_t id)
{
	return *live_slot((struct dcpd_client *)c, id);
}

struct live *
live_add(struct dcpd_client *c, uint64_t id, uint64_t user_data)
{
	struct live **p = live_slot(c, id), *r;

	DCPD_ASSERT(*p == NULL);
	r = calloc(1, sizeof *r);
	if (r == NULL)
		return NULL;
	r->last_words = calloc(1, sizeof *r->last_words);
	if (r->last_words == NULL) {
		free(r);
		return NULL;
	}
	r->id = id;
	r->user_data = user_data;
	*p = r;
	c->n_live++;
	return r;
}

void
live_del(struct dcpd_client *c, uint64_t id)
{
	struct live **p = live_slot(c, id), *r = *p;

	DCPD_ASSERT(r != NULL);
	*p = r->next;
	c->n_live--;
	uid_discharge(c, r->reserved);
	if (r->counted)
		atomic_fetch_sub(&c->use->requests, 1);
	free(r->last_words);
	free(r);
}

/* --- life --- */

static int
watch(struct dcpd_ipc *ipc, int op, int fd, uint32_t events, struct source *s)
{
	struct epoll_event e = { .events = events, .data.ptr = s };

	return epoll_ctl(ipc->epfd, op, fd, &e);
}

struct dcpd_client *
client_new(struct dcpd_ipc *ipc, const struct pending *p, int pidfd, int bell,
    uint8_t *cli, uint8_t *srv)
{
	struct dcpd_client *c = calloc(1, sizeof *c);

	if (c == NULL)
		return NULL;
	c->magic = CLIENT_MAGIC;
	atomic_store(&c->refs, 1);
	c->ipc = ipc;
	c->use = p->use;
	c->id = ipc->next_client;
	c->cred = p->cred;
	c->since = dcpd_now();
	c->sock = p->sock;
	c->pidfd = pidfd;
	c->bell = bell;
	c->src_sock = (struct source){ SRC_SOCK, c };
	c->src_bell = (struct source){ SRC_BELL, c };
	c->src_pid = (struct source){ SRC_PIDFD, c };
	c->cli = cli;
	c->srv = srv;
	c->c = (void *)cli;
	c->s = (void *)srv;
	c->sq_bell = 1;			/* as hello.c set the shared word */
	c->out_end = &c->out;
	pthread_mutex_init(&c->lock, NULL);
	/*
	 * The doorbell is edge-triggered and never read: the client shares
	 * its description and could make a read of it wait for ever.
	 */
	if (watch(ipc, EPOLL_CTL_MOD, c->sock, EPOLLIN, &c->src_sock) < 0 ||
	    watch(ipc, EPOLL_CTL_ADD, bell, EPOLLIN | EPOLLET,
	    &c->src_bell) < 0 ||
	    watch(ipc, EPOLL_CTL_ADD, pidfd, EPOLLIN, &c->src_pid) < 0) {
		/* The caller closes them, which takes them out of epoll. */
		pthread_mutex_destroy(&c->lock);
		free(c);
		return NULL;
	}
	ipc->next_client++;
	atomic_fetch_add(&ipc->refs, 1);
	pthread_mutex_lock(&ipc->list_lock);
	c->next = ipc->clients;
	c->prev = &ipc->clients;
	if (c->next != NULL)
		c->next->prev = &c->next;
	ipc->clients = c;
	ipc->n_clients++;
	pthread_mutex_unlock(&ipc->list_lock);
	DCPD_COUNT(clients, 1);
	DCPD_COUNT(clients_total, 1);
	return c;
}

/* Everything that an emitting thread could touch, under the lock. */
static void
let_go(struct dcpd_client *c)
{
	unsigned i;

	pthread_mutex_lock(&c->lock);
	c->gone = true;
	for (i = 0; i < LIVE_BUCKETS; i++)
		while (c->live[i] != NULL)
			live_del(c, c->live[i]->id);
	emit_free_queue(c);
	munmap(c->cli, CLIENT_BYTES);
	munmap(c->srv, SERVER_BYTES);
	c->cli = c->srv = NULL;
	c->c = NULL;
	c->s = NULL;
	close(c->sock);
	c->sock = -1;
	pthread_mutex_unlock(&c->lock);
}

void
client_drop(struct dcpd_client *c, const char *reason)
{
	struct dcpd_ipc *ipc = c->ipc;

	if (c->dropped)
		return;
	c->dropped = true;
	if (reason != NULL) {
		ipc_complain(ipc, "client %llu (pid %d, uid %u) dropped: %s",
		    (unsigned long long)c->id, c->cred.pid, c->cred.uid,
		    reason);
		DCPD_COUNT(clients_dropped, 1);
	}
	/*
	 * By hand: closing the doorbell leaves it registered for as long as
	 * the client holds its end of the same description.
	 */
	epoll_ctl(ipc->epfd, EPOLL_CTL_DEL, c->bell, NULL);
	epoll_ctl(ipc->epfd, EPOLL_CTL_DEL, c->pidfd, NULL);
	epoll_ctl(ipc->epfd, EPOLL_CTL_DEL, c->sock, NULL);
	let_go(c);
	close(c->bell);
	close(c->pidfd);
	pthread_mutex_lock(&ipc->list_lock);
	*c->prev = c->next;
	if (c->next != NULL)
		c->next->prev = c->prev;
	ipc->n_clients--;
	pthread_mutex_unlock(&ipc->list_lock);
	c->use->clients--;
	DCPD_COUNT(clients, -1);
	if (ipc->ops.gone != NULL)
		ipc->ops.gone(ipc->arg, c);
	/* Events of this turn may still name it: freed at the turn's end. */
	c->dead_next = ipc->dead;
	ipc->dead = c;
}

struct dcpd_client *
dcpd_client_ref(struct dcpd_client *c)
{
	DCPD_CHECK(c, CLIENT_MAGIC);
	atomic_fetch_add(&c->refs, 1);
	return c;
}

void
dcpd_client_unref(struct dcpd_client *c)
{
	struct dcpd_ipc *ipc;

	DCPD_CHECK(c, CLIENT_MAGIC);
	if (atomic_fetch_sub(&c->refs, 1) > 1)
		return;
	DCPD_ASSERT(c->gone);
	ipc = c->ipc;
	pthread_mutex_destroy(&c->lock);
	c->magic = 0;
	free(c);
	ipc_unref(ipc);
}
