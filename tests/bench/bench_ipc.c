/* `dcpctl bench ipc` as a program of its own. */
#include "dcpctl/bench_ipc.h"

int
main(int argc, char **argv)
{
	return bench_ipc_main(argc, argv);
}
