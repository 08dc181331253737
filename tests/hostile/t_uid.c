/*
 * Clients of other users: who may connect, and who may go first. They are
 * children that change their ids, which only root can do.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/ring_probe.h"
#include "tests/unit/ring_server.h"

#define STRANGER 65534
#define GROUP 54321		/* may connect */

static const char *path, *logfile;
static pid_t server;

static void
start(bool check_group)
{
	struct ring_server_config cfg = { .ipc.mode = 0666,
	    .ipc.check_group = check_group, .ipc.group = GROUP };
	char dir[128];

	path = ring_temp_path("sock");
	snprintf(dir, sizeof dir, "%s", path);
	ck_assert_int_eq(chmod(dirname(dir), 0711), 0);
	logfile = log_make();
	cfg.ipc.path = path;
	server = ring_server_fork(&cfg, logfile);
	ck_assert_int_gt(server, 0);
}

/* What f returns in a process of another user, 0..255. */
static int
as_stranger(gid_t group, int (*f)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		DCPD_ASSERT(setgroups(1, &group) == 0);
		DCPD_ASSERT(setresgid(STRANGER, STRANGER, STRANGER) == 0);
		DCPD_ASSERT(setresuid(STRANGER, STRANGER, STRANGER) == 0);
		_exit(f());
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int
try_connect(void)
{
	struct dcp *d;
	int rc = dcp_connect(path, 10000, &d);

	if (rc == -EACCES && strstr(dcp_error_text(), "not in group") == NULL)
		return 1;
	return -rc;
}

START_TEST(only_the_group_may_connect)
{
	start(true);
	ck_assert_int_eq(as_stranger(STRANGER, try_connect), EACCES);
	ck_assert_int_eq(log_count(logfile, "refused: not in group"), 1);
	/* A supplementary group counts; so does who we are. */
	ck_assert_int_eq(as_stranger(GROUP, try_connect), 0);
	ck_assert_int_eq(try_connect(), 0);
	ring_server_end(server);
}
END_TEST

/* The error of a request with this priority, 0 when it is served. */
static int
error_of(struct dcp *d, int priority)
{
	uint32_t one = 1, type;
	struct dcp_request r = { .size = sizeof r, .data = &one, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 1,
	    .priority = priority };
	const struct dcp_event *ev;
	uint64_t id;
	int error;

	DCPD_ASSERT(dcp_submit(d, &r, &id) == 0);
	do {
		DCPD_ASSERT(dcp_next(d, 20000, &ev) == 0);
		type = ev->type;
		error = -ev->error;
		if (error == EPERM && strstr(ev->text, "priority is") == NULL)
			error = 255;
		dcp_event_release(d, ev);
	} while (type == DCP_EV_DELTA);
	return error;
}

static int
raise_it(void)
{
	struct dcp *d;
	int rc;

	DCPD_ASSERT(dcp_connect(path, 10000, &d) == 0);
	rc = error_of(d, 0) != 0 || error_of(d, -7) != 0 ? 1 : error_of(d, 1);
	dcp_close(d);
	return rc;
}

START_TEST(only_root_and_the_daemons_user_may_go_first)
{
	start(false);
	ck_assert_int_eq(as_stranger(STRANGER, raise_it), EPERM);
	ck_assert_int_eq(raise_it(), 0);
	ring_server_end(server);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("uid");
	TCase *t = tcase_create("uid");
	SRunner *r = srunner_create(s);
	int failed;

	if (geteuid() != 0) {
		puts("SKIP: only root can become another user");
		return 77;
	}
	tcase_set_timeout(t, 120);
	tcase_add_test(t, only_the_group_may_connect);
	tcase_add_test(t, only_root_and_the_daemons_user_may_go_first);
	suite_add_tcase(s, t);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed > 0;
}
