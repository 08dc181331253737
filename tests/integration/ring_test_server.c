/*
 * ring_test_server PATH: the counting server of the ring's tests, for shell
 * scripts. Prints "ready", serves until SIGTERM.
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

#include "tests/unit/ring_server.h"

int
main(int argc, char **argv)
{
	struct ring_server_config cfg = { 0 };
	struct ring_server *rs;
	sigset_t set;
	int sig;

	if (argc != 2)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	cfg.ipc.path = argv[1];
	rs = ring_server_start(&cfg);
	if (rs == NULL)
		return 1;
	puts("ready");
	fflush(stdout);
	sigwait(&set, &sig);
	ring_server_stop(rs);
	return 0;
}
