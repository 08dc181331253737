/* The one command that dcpctl shares with tests/bench. */
#ifndef DCPCTL_BENCH_IPC_H
#define DCPCTL_BENCH_IPC_H

/* `dcpctl bench ipc`: argv[0] is its name. Returns an exit code. */
int bench_ipc_main(int argc, char **argv);

#endif
