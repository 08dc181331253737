/* Text parts that the scheduler calls, until the real ones are here. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "dcpd/text/text.h"

struct dcpd_textpool {
	pthread_mutex_t lock;
	pthread_cond_t cv;
	struct dcpd_job *head, **tail;
	pthread_t t[4];
	unsigned n;
	int stop;
};

static void *
work(void *arg)
{
	struct dcpd_textpool *p = arg;
	struct dcpd_job *j;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (p->head == NULL && !p->stop)
			pthread_cond_wait(&p->cv, &p->lock);
		if (p->head == NULL)
			break;
		j = p->head;
		p->head = j->next;
		if (p->head == NULL)
			p->tail = &p->head;
		pthread_mutex_unlock(&p->lock);
		j->run(j);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int
dcpd_textpool_start(unsigned threads, struct dcpd_textpool **out,
    struct dcpd_err *err)
{
	struct dcpd_textpool *p = calloc(1, sizeof *p);

	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->cv, NULL);
	p->tail = &p->head;
	p->n = threads;
	for (unsigned i = 0; i < threads; i++)
		pthread_create(&p->t[i], NULL, work, p);
	*out = p;
	return 0;
}

void
dcpd_textpool_post(struct dcpd_textpool *p, uint32_t uid, struct dcpd_job *j)
{
	pthread_mutex_lock(&p->lock);
	j->next = NULL;
	*p->tail = j;
	p->tail = &j->next;
	pthread_cond_signal(&p->cv);
	pthread_mutex_unlock(&p->lock);
}

void
dcpd_textpool_stop(struct dcpd_textpool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = 1;
	pthread_cond_broadcast(&p->cv);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->n; i++)
		pthread_join(p->t[i], NULL);
	free(p);
}

int
dcpd_out_new(const struct dcpd_tokenizer *t, const struct dcpd_out_config *c,
    struct dcpd_out **o)
{
	return -ENOTSUP;
}

int
dcpd_out_push(struct dcpd_out *o, uint32_t id, dcpd_out_fn *fn, void *arg)
{
	return -ENOTSUP;
}

int
dcpd_out_finish(struct dcpd_out *o, dcpd_out_fn *fn, void *arg)
{
	return -ENOTSUP;
}

uint32_t
dcpd_out_reasoning_tokens(const struct dcpd_out *o)
{
	return 0;
}

uint32_t
dcpd_out_calls(const struct dcpd_out *o)
{
	return 0;
}

void
dcpd_out_free(struct dcpd_out *o)
{
}
