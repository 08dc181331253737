/* The counting daemon of the ring's tests; see ring_server.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/ring_server.h"

struct job {
	struct job *next;
	struct dcpd_submit *s;
	uint32_t first, i;
	bool cancelled;
};

struct ring_server {
	struct ring_server_config cfg;
	struct dcpd_ipc *ipc;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct job *jobs, *fresh;	/* fresh: not yet the worker's */
	unsigned n;
	bool stop;
};

/* One token; 1 when the job has ended. */
static int
step(struct ring_server *rs, struct job *j)
{
	uint32_t vocab = rs->cfg.ipc.vocab, k;
	uint32_t token = (j->first + j->i) % vocab;
	struct dcp_logprob top[64];
	struct dcp_token_logprobs lp = {
		.chosen = { token, -0.5f * (float)(j->i + 1) },
		.n_top = j->s->p.top_logprobs, .top = top,
	};
	struct dcp_event ev = { .type = DCP_EV_DELTA };
	char text[32];

	if (j->cancelled || j->i == j->s->p.max_tokens) {
		ev.type = DCP_EV_DONE;
		ev.finish = j->cancelled ? DCP_FINISH_ABORT :
		    DCP_FINISH_LENGTH;
		ev.usage.prompt_tokens = (uint32_t)j->s->len / 4;
		ev.usage.completion_tokens = j->i;
		dcpd_ipc_emit(j->s->client, j->s->id, &ev);
		return 1;
	}
	ev.text_len = (size_t)snprintf(text, sizeof text, "%u ", token);
	ev.text = text;
	ev.tokens = &token;
	ev.n_tokens = 1;
	if (j->s->flags & DCP_LOGPROBS) {
		if (lp.n_top > 64)	/* all that top has room for */
			lp.n_top = 64;
		for (k = 0; k < lp.n_top; k++)
			top[k] = (struct dcp_logprob){ k, -(float)k };
		ev.logprobs = &lp;
		ev.n_logprobs = 1;
	}
	j->i++;
	return dcpd_ipc_emit(j->s->client, j->s->id, &ev) < 0;
}

static void *
worker(void *arg)
{
	struct ring_server *rs = arg;
	struct job *mine = NULL, **p, *j;

	for (;;) {
		pthread_mutex_lock(&rs->lock);
		while (mine == NULL && rs->jobs == NULL && !rs->stop)
			pthread_cond_wait(&rs->cond, &rs->lock);
		for (p = &mine; *p != NULL; p = &(*p)->next)
			;
		*p = rs->jobs;		/* in order of arrival */
		rs->jobs = NULL;
		if (rs->stop) {
			pthread_mutex_unlock(&rs->lock);
			break;
		}
		rs->fresh = mine;
		pthread_mutex_unlock(&rs->lock);
		for (p = &mine; (j = *p) != NULL; ) {
			int end;

			pthread_mutex_lock(&rs->lock);
			end = step(rs, j);
			if (end) {
				*p = j->next;
				rs->fresh = mine;
				rs->n--;
			} else {
				p = &j->next;
			}
			pthread_mutex_unlock(&rs->lock);
			if (end) {
				dcpd_submit_free(j->s);
				free(j);
			}
		}
		if (rs->cfg.step_us > 0)
			usleep(rs->cfg.step_us);
	}
	while ((j = mine) != NULL) {
		mine = j->next;
		dcpd_submit_free(j->s);
		free(j);
	}
	return NULL;
}

static int
op_submit(void *arg, struct dcpd_submit *s, struct dcpd_err *err)
{
	struct ring_server *rs = arg;
	struct job *j, **p;
	int rc;

	if (s->options != NULL && strstr(s->options, "\"refuse\"") != NULL)
		return dcpd_fail(err, -ENOSPC, "refused as asked");
	if (rs->cfg.reserve) {
		rc = dcpd_ipc_reserve(s->client, s->id, s->p.max_tokens,
		    s->p.top_logprobs);
		if (rc < 0)
			return dcpd_fail(err, rc, "no quota for %u tokens",
			    s->p.max_tokens);
	}
	j = calloc(1, sizeof *j);
	j->s = s;
	if (s->input == DCP_INPUT_TOKENS)
		memcpy(&j->first, s->data, sizeof j->first);
	pthread_mutex_lock(&rs->lock);
	for (p = &rs->jobs; *p != NULL; p = &(*p)->next)
		;
	*p = j;
	rs->n++;
	pthread_cond_signal(&rs->cond);
	pthread_mutex_unlock(&rs->lock);
	return 0;
}

static void
cancel_in(struct job *j, uint64_t id)
{
	for (; j != NULL; j = j->next)
		if (j->s->id == id)
			j->cancelled = true;
}

static void
op_cancel(void *arg, struct dcpd_client *c, uint64_t id)
{
	struct ring_server *rs = arg;

	pthread_mutex_lock(&rs->lock);
	cancel_in(rs->jobs, id);
	cancel_in(rs->fresh, id);
	pthread_mutex_unlock(&rs->lock);
}

static char *
op_info(void *arg)
{
	struct ring_server *rs = arg;
	size_t n = rs->cfg.info_bytes;
	char *json;

	if (n == 0)
		return strdup("{\"model\":\"counter\"}");
	json = malloc(n + 32);
	memcpy(json, "{\"model\":\"", 10);
	memset(json + 10, 'x', n);
	memcpy(json + 10 + n, "\"}", 3);
	return json;
}

/* The worker sees -EPIPE at its next step of a gone client's jobs. */
static const struct dcpd_ipc_ops ops = {
	.submit = op_submit, .cancel = op_cancel, .info = op_info,
};

struct ring_server *
ring_server_start(const struct ring_server_config *cfg)
{
	struct ring_server *rs = calloc(1, sizeof *rs);
	struct dcpd_err err = { 0 };

	rs->cfg = *cfg;
	if (rs->cfg.ipc.vocab == 0)
		rs->cfg.ipc.vocab = 1000;
	pthread_mutex_init(&rs->lock, NULL);
	pthread_cond_init(&rs->cond, NULL);
	if (dcpd_ipc_start(&rs->cfg.ipc, &ops, rs, &rs->ipc, &err) < 0) {
		dcpd_log(LOG_ERR, "%s", err.text);
		free(rs);
		return NULL;
	}
	pthread_create(&rs->thread, NULL, worker, rs);
	return rs;
}

void
ring_server_stop(struct ring_server *rs)
{
	dcpd_ipc_stop(rs->ipc);
	pthread_mutex_lock(&rs->lock);
	rs->stop = true;
	pthread_cond_signal(&rs->cond);
	pthread_mutex_unlock(&rs->lock);
	pthread_join(rs->thread, NULL);
	pthread_cond_destroy(&rs->cond);
	pthread_mutex_destroy(&rs->lock);
	free(rs);
}

struct dcpd_ipc *
ring_server_ipc(struct ring_server *rs)
{
	return rs->ipc;
}

unsigned
ring_server_jobs(struct ring_server *rs)
{
	unsigned n;

	pthread_mutex_lock(&rs->lock);
	n = rs->n;
	pthread_mutex_unlock(&rs->lock);
	return n;
}

static void
child(const struct ring_server_config *cfg, const char *log, int ready)
{
	struct ring_server *rs;
	sigset_t set;
	int fd, sig;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (log != NULL) {
		fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
		dup2(fd, STDERR_FILENO);
		close(fd);
	}
	rs = ring_server_start(cfg);
	if (rs == NULL || write(ready, "", 1) != 1)
		_exit(1);
	close(ready);
	sigwait(&set, &sig);
	ring_server_stop(rs);
	exit(0);
}

pid_t
ring_server_fork(const struct ring_server_config *cfg, const char *log)
{
	int fds[2];
	char c;
	pid_t pid;

	if (pipe(fds) < 0 || (pid = fork()) < 0)
		return -1;
	if (pid == 0) {
		close(fds[0]);
		child(cfg, log, fds[1]);
	}
	close(fds[1]);
	if (read(fds[0], &c, 1) != 1)
		pid = -1;
	close(fds[0]);
	return pid;
}

void
ring_server_end(pid_t pid)
{
	int status;

	kill(pid, SIGTERM);
	DCPD_ASSERT(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		dcpd_log(LOG_ERR, "the server ended with status %#x", status);
		abort();
	}
}

static char temp_dir[64];
static pid_t temp_owner;

static void
remove_temp(void)
{
	char cmd[96];

	if (getpid() != temp_owner)
		return;
	snprintf(cmd, sizeof cmd, "rm -rf '%s'", temp_dir);
	if (system(cmd) != 0)
		dcpd_log(LOG_WARNING, "%s stays", temp_dir);
}

const char *
ring_temp_path(const char *name)
{
	static char path[8][128];
	static unsigned n;
	char *p = path[n++ % 8];

	if (temp_owner != getpid()) {
		strcpy(temp_dir, "/tmp/dcpd-ring-XXXXXX");
		if (mkdtemp(temp_dir) == NULL)
			abort();
		temp_owner = getpid();
		atexit(remove_temp);
	}
	snprintf(p, sizeof path[0], "%s/%s", temp_dir, name);
	return p;
}
