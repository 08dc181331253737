# dcpd/ipc: the daemon's side of the ring
libdcpd_a_SOURCES += dcpd/ipc/ipc.c dcpd/ipc/ipc.h dcpd/ipc/ipc_internal.h \
	dcpd/ipc/hello.c dcpd/ipc/client.c dcpd/ipc/intake.c dcpd/ipc/emit.c

check_PROGRAMS += tests/unit/t_ring
TESTS += tests/unit/t_ring
tests_unit_t_ring_SOURCES = tests/unit/t_ring.c tests/unit/ring_server.c \
	tests/unit/ring_server.h
tests_unit_t_ring_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_arena
TESTS += tests/unit/t_arena
tests_unit_t_arena_SOURCES = tests/unit/t_arena.c tests/unit/ring_server.c \
	tests/unit/ring_server.h
tests_unit_t_arena_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

noinst_PROGRAMS += tests/bench/bench_ipc
tests_bench_bench_ipc_SOURCES = tests/bench/bench_ipc.c \
	dcpctl/bench_ipc.c dcpctl/bench_ipc.h
tests_bench_bench_ipc_LDADD = libdcpclient.la $(DCPD_LIBS)

ring_test_sources = tests/unit/ring_server.c tests/unit/ring_server.h \
	tests/unit/ring_probe.c tests/unit/ring_probe.h

check_PROGRAMS += tests/unit/t_ring_threads
TESTS += tests/unit/t_ring_threads
tests_unit_t_ring_threads_SOURCES = tests/unit/t_ring_threads.c \
	$(ring_test_sources)
tests_unit_t_ring_threads_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_ring_kill
TESTS += tests/unit/t_ring_kill
tests_unit_t_ring_kill_SOURCES = tests/unit/t_ring_kill.c \
	$(ring_test_sources)
tests_unit_t_ring_kill_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/hostile/t_hostile
TESTS += tests/hostile/t_hostile
tests_hostile_t_hostile_SOURCES = tests/hostile/t_hostile.c \
	tests/hostile/raw.c tests/hostile/raw.h $(ring_test_sources)
tests_hostile_t_hostile_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/integration/ring_test_server
tests_integration_ring_test_server_SOURCES = \
	tests/integration/ring_test_server.c $(ring_test_sources)
tests_integration_ring_test_server_LDADD = libdcpclient.la $(DCPD_LIBS)
TESTS += tests/integration/ring_install.sh
EXTRA_DIST += tests/integration/ring_install.sh

check_PROGRAMS += tests/hostile/t_uid
TESTS += tests/hostile/t_uid
tests_hostile_t_uid_SOURCES = tests/hostile/t_uid.c $(ring_test_sources)
tests_hostile_t_uid_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/hostile/victim tests/hostile/witness
tests_hostile_victim_SOURCES = tests/hostile/victim.c
tests_hostile_victim_LDADD = libdcpclient.la $(DCPD_LIBS)
tests_hostile_witness_SOURCES = tests/hostile/witness.c \
	tests/unit/ring_probe.c tests/unit/ring_probe.h
tests_hostile_witness_LDADD = libdcpclient.la $(DCPD_LIBS)
TESTS += tests/hostile/test_kill.py
EXTRA_DIST += tests/hostile/test_kill.py

# Not sanitized itself: it stands between a program and its allocator.
check_LTLIBRARIES += tests/hostile/libfault.la
tests_hostile_libfault_la_SOURCES = tests/hostile/fault.c
tests_hostile_libfault_la_CFLAGS = -Wall -Wextra -std=gnu17 -fno-builtin
tests_hostile_libfault_la_LDFLAGS = -module -avoid-version -rpath /nowhere
TESTS += tests/hostile/test_faults.py
EXTRA_DIST += tests/hostile/test_faults.py

check_PROGRAMS += tests/fuzz/fuzz_ring
TESTS += tests/fuzz/fuzz_ring
tests_fuzz_fuzz_ring_SOURCES = tests/fuzz/fuzz_ring.c $(FUZZ_DRIVER) \
	tests/hostile/raw.c \
	tests/hostile/raw.h $(ring_test_sources)
tests_fuzz_fuzz_ring_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)
