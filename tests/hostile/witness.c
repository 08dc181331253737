/*
 * witness SOCKET PID: an honest client of the daemon PID while others are
 * killed. For each line on its input it prints how many round trips it made
 * since the last, and the longest in ms (time without a core not counted).
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/ring_probe.h"

int
main(int argc, char **argv)
{
	struct probe *p;

	if (argc != 3)
		return 2;
	p = probe_start(argv[1], atoi(argv[2]));
	while (getchar() != EOF) {
		printf("%u %.3f\n", probe_trips(p), probe_worst_ms(p));
		fflush(stdout);
		probe_reset(p);
	}
	probe_stop(p);
	return 0;
}
