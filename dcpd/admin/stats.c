/* The stats page: made at start by the main thread, then only written to. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/stats.h"

static struct dcps_page first = {
	.magic = DCPS_MAGIC, .version = DCPS_VERSION, .size = sizeof first,
	.release = PACKAGE_VERSION, .n_counters = DCPD_CNT_N,
	.op_name = {
#define X(name) [DCPD_OP_##name] = #name,
		DCPD_OPS(X)
#undef X
	},
	.counter_name = {
#define X(name, kind, help) [DCPD_CNT_##name] = #name,
		DCPD_COUNTERS(X)
#undef X
	},
};

_Static_assert(DCPD_CNT_N <= DCPS_COUNTERS && DCPD_OP_N <= DCPS_OPS,
    "the stats page has room for every counter and operation");

struct dcps_page *dcpd_page = &first;
_Atomic uint64_t *dcpd_counters = first.counter;

static char *file;		/* to remove at the end; NULL: none */
static int file_fd = -1;	/* holds the lock */

/*
 * Somebody else's lock, if path has one. What a dead daemon left is replaced
 * by the rename, so that whoever still maps it is not disturbed.
 */
static int
look(const char *path, struct dcpd_err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int rc = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : dcpd_fail(err, -errno,
		    "stats page %s: %s; remove it", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) != 0)
		rc = dcpd_fail(err, -EADDRINUSE, "stats page %s: in use by "
		    "another dcpd; stop it, or give another --socket", path);
	close(fd);
	return rc;
}

static int
make(const char *path, const char *tmp, struct dcpd_err *err)
{
	struct dcps_page *p = MAP_FAILED;
	int fd, rc;

	unlink(tmp);
	fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
	if (fd < 0)
		return dcpd_fail(err, -errno, "stats page %s: %s", tmp,
		    strerror(errno));
	/*
	 * Whatever the umask. Room is taken now: a full disk must not be
	 * found by counting.
	 */
	rc = fchmod(fd, 0640) != 0 ? -errno :
	    -posix_fallocate(fd, 0, sizeof *p);
	if (rc == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0)
		rc = -errno;
	if (rc == 0)
		p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED,
		    fd, 0);
	if (rc == 0 && p == MAP_FAILED)
		rc = -errno;
	if (rc == 0) {
		memcpy(p, dcpd_page, sizeof *p);
		p->pid = (uint32_t)getpid();
		p->started_ns = dcpd_now_ns();
		if (rename(tmp, path) != 0)
			rc = -errno;
	}
	if (rc != 0) {
		if (p != MAP_FAILED)
			munmap(p, sizeof *p);
		unlink(tmp);
		close(fd);
		return dcpd_fail(err, rc, "stats page %s: %s", path,
		    strerror(-rc));
	}
	file_fd = fd;
	dcpd_page = p;
	dcpd_counters = p->counter;
	return 0;
}

int
dcpd_stats_open(const char *path, struct dcpd_err *err)
{
	char tmp[200];
	int rc = look(path, err);

	if (rc != 0)
		return rc;
	snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
	file = strdup(path);
	if (file == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	rc = make(path, tmp, err);
	if (rc != 0) {
		free(file);
		file = NULL;
	}
	return rc;
}

/* The mapping stays: a last thread may still count. */
void
dcpd_stats_close(void)
{
	if (file == NULL)
		return;
	unlink(file);
	close(file_fd);
	free(file);
	file = NULL;
	file_fd = -1;
}

void
dcpd_stats_pass(const struct dcpk_plan *plan)
{
	struct dcps_pass *p = &dcpd_page->pass;

	p->prefill = plan->pass == DCPK_PREFILL;
	p->rows = plan->n_rows;
	p->reqs = plan->n_reqs;
	p->pages = plan->n_pages;
	p->samples = plan->n_samples;
	p->began_ns = dcpd_now_ns();
	p->ended_ns = 0;
	p->step = plan->step;
}

void
dcpd_stats_pass_end(void)
{
	dcpd_page->pass.ended_ns = dcpd_now_ns();
}
