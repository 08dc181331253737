/*
 * Reload, by the main thread; an admin command's thread waits for it at `box`.
 * See reload.h.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "dcpd/plugin/plugin.h"
#include "dcpd/reload.h"

static int arg_n;
static char **arg_v;		/* main's, which stay */

/* From an admin command to the main thread and back. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t answered;
	int wake_fd;
	bool wanted, check, done, closed;
	json_t *result;
	struct dcpd_err err;
} box = {
	.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER,
	.wake_fd = -1, .closed = true,
};

static size_t
value_size(const struct dcpd_flag_def *d)
{
	switch (d->type) {
	case DCPD_TYPE_STR:
		return sizeof(char *);
	case DCPD_TYPE_REAL:
		return sizeof(double);
	case DCPD_TYPE_BYTES:
		return sizeof(uint64_t);
	case DCPD_TYPE_BOOL:
		return sizeof(bool);
	default:
		return sizeof(uint32_t);
	}
}

/* Swaps the runtime flags of a and b; strings change their owner. */
static void
swap_runtime(struct dcpd_options *a, struct dcpd_options *b)
{
	const struct dcpd_flag_def *d;
	json_t *conf = a->plugin_conf;
	char keep[sizeof(uint64_t)];
	uint8_t given;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		char *x = (char *)a + d->off, *y = (char *)b + d->off;

		if (d->name == NULL || !dcpd_flag_runtime(d))
			continue;
		memcpy(keep, x, value_size(d));
		memcpy(x, y, value_size(d));
		memcpy(y, keep, value_size(d));
		given = a->given[d->flag];
		a->given[d->flag] = b->given[d->flag];
		b->given[d->flag] = given;
	}
	a->plugin_conf = b->plugin_conf;
	b->plugin_conf = conf;
}

/* What differs between now and the new configuration. */
static json_t *
compare(const struct dcpd_options *now, const struct dcpd_options *new)
{
	json_t *a = dcpd_options_json(now), *b = dcpd_options_json(new);
	json_t *changed = json_object(), *restart = json_object(), *x, *y;
	const struct dcpd_flag_def *d;

	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL || d->kind == DCPD_KIND_REFUSE ||
		    !dcpd_flag_in_file(d))
			continue;
		x = json_object_get(a, d->name);
		y = json_object_get(b, d->name);
		if (!json_equal(x, y))
			json_object_set_new(dcpd_flag_runtime(d) ? changed :
			    restart, d->name, json_pack("{s:O, s:O}", "from",
			    x, "to", y));
	}
	json_decref(a);
	json_decref(b);
	return json_pack("{s:o, s:o}", "changed", changed, "restart", restart);
}

/* What now is in d->opt; takes both objects. */
static void
apply(struct dcpd_daemon *d, json_t *config, json_t *changed)
{
	const struct dcpd_options *o = &d->opt;
	const struct dcpd_ipc_limits l = {
		.max_clients = o->max_clients,
		.max_clients_uid = o->max_clients_uid,
		.max_requests_uid = o->max_requests_uid,
		.max_bytes_uid = o->max_bytes_uid,
	};

	dcpd_log_level(dcpd_options_log_level(o));
	d->run.stuck_after = o->stuck_after;
	dcpd_sched_limits(d->sched, o->queue_max, o->max_requests_uid);
	dcpd_ipc_limits(d->ipc, &l);
	pthread_mutex_lock(&d->run.config_lock);
	json_decref(d->run.config);
	json_decref(d->run.changed);
	d->run.config = config;
	d->run.changed = changed;
	pthread_mutex_unlock(&d->run.config_lock);
}

static void
log_each(const json_t *flags, const char *what)
{
	const char *name;
	json_t *o;

	json_object_foreach((json_t *)flags, name, o) {
		char *from = json_dumps(json_object_get(o, "from"),
		    JSON_ENCODE_ANY);
		char *to = json_dumps(json_object_get(o, "to"),
		    JSON_ENCODE_ANY);

		dcpd_log(LOG_NOTICE, "reload: %s: %s, was %s%s", name,
		    to != NULL ? to : "?", from != NULL ? from : "?", what);
		free(from);
		free(to);
	}
}

static json_t *
reload(struct dcpd_daemon *d, bool check, struct dcpd_err *err)
{
	json_t *r = NULL, *config = NULL, *changed = NULL;
	struct dcpd_options new = { 0 };
	bool keep = false;

	if (dcpd_options_parse(arg_n, arg_v, &new, err) != 0)
		return NULL;
	r = compare(&d->opt, &new);
	/* With the old values of the others it must be right, too. */
	swap_runtime(&d->opt, &new);
	config = dcpd_options_json(&d->opt);
	changed = dcpd_options_changed(&d->opt);
	if (r == NULL || config == NULL || changed == NULL ||
	    json_object_set_new(r, "check", json_boolean(check)) != 0)
		dcpd_fail(err, -ENOMEM, "out of memory");
	else if (dcpd_options_check(&d->opt, err) == 0 && (check ?
	    dcpd_plugins_check(&d->opt, err) :
	    dcpd_plugins_reload(&d->opt, err)) == 0)
		keep = true;
	if (keep && !check) {
		apply(d, config, changed);
		config = changed = NULL;
		log_each(json_object_get(r, "changed"), "");
		log_each(json_object_get(r, "restart"), "; needs a restart");
	} else {
		swap_runtime(&d->opt, &new);
	}
	if (!keep) {
		json_decref(r);
		r = NULL;
	}
	json_decref(config);
	json_decref(changed);
	dcpd_options_free(&new);
	return r;
}

json_t *
dcpd_reload(struct dcpd_daemon *d, bool check, struct dcpd_err *err)
{
	json_t *r;

	if (check)
		return reload(d, true, err);
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=reloading",
	    (unsigned long long)(dcpd_now_ns() / 1000));
	r = reload(d, false, err);
	if (r == NULL)
		dcpd_log(LOG_ERR, "reload: nothing changed: %s", err->text);
	else
		dcpd_log(LOG_NOTICE, "reloaded: %zu changed, %zu need a "
		    "restart", json_object_size(json_object_get(r, "changed")),
		    json_object_size(json_object_get(r, "restart")));
	sd_notify(0, r != NULL ? "READY=1\nSTATUS=serving" :
	    "READY=1\nSTATUS=serving; the last reload failed, see the log");
	return r;
}

/* run->reload: an admin command's own thread, without run->lock. */
static json_t *
ask(struct dcpd_run *run, bool check, struct dcpd_err *err)
{
	uint64_t one = 1;
	json_t *r;

	pthread_mutex_lock(&box.lock);
	if (box.closed) {
		pthread_mutex_unlock(&box.lock);
		dcpd_fail(err, -EAGAIN, "the daemon is still loading or is "
		    "ending: nothing is read again");
		return NULL;
	}
	box.wanted = true;
	box.check = check;
	box.done = false;
	if (write(box.wake_fd, &one, sizeof one) < 0)
		dcpd_log(LOG_DEBUG, "reload: wake-up not sent");
	while (!box.done)
		pthread_cond_wait(&box.answered, &box.lock);
	r = box.result;
	if (r == NULL)
		*err = box.err;
	pthread_mutex_unlock(&box.lock);
	return r;
}

void
dcpd_reload_init(struct dcpd_daemon *d, int argc, char **argv, int wake_fd)
{
	arg_n = argc;
	arg_v = argv;
	d->run.reload = ask;
	box.wake_fd = wake_fd;
}

void
dcpd_reload_open(void)
{
	pthread_mutex_lock(&box.lock);
	box.closed = false;
	pthread_mutex_unlock(&box.lock);
}

void
dcpd_reload_serve(struct dcpd_daemon *d)
{
	struct dcpd_err err = { 0 };
	json_t *r;
	bool check;

	pthread_mutex_lock(&box.lock);
	if (!box.wanted) {
		pthread_mutex_unlock(&box.lock);
		return;
	}
	check = box.check;
	pthread_mutex_unlock(&box.lock);
	r = dcpd_reload(d, check, &err);
	pthread_mutex_lock(&box.lock);
	box.result = r;
	box.err = err;
	box.wanted = false;
	box.done = true;
	pthread_cond_signal(&box.answered);
	pthread_mutex_unlock(&box.lock);
}

void
dcpd_reload_close(void)
{
	pthread_mutex_lock(&box.lock);
	box.closed = true;
	if (box.wanted) {
		box.result = NULL;
		dcpd_fail(&box.err, -ESHUTDOWN, "the daemon is ending");
		box.wanted = false;
		box.done = true;
		pthread_cond_signal(&box.answered);
	}
	pthread_mutex_unlock(&box.lock);
}
