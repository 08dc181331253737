# dcpd/sched, dcpd/kv/pages.c and their tests
libdcpd_a_SOURCES += \
	dcpd/kv/pages.h dcpd/kv/pages.c \
	dcpd/kv/prefix.h dcpd/kv/prefix.c \
	dcpd/sched/sched.h dcpd/sched/sched_i.h \
	dcpd/sched/plan.h dcpd/sched/plan.c \
	dcpd/sched/sched.c \
	dcpd/sched/live.c \
	dcpd/sched/request.c \
	dcpd/sched/admit.c \
	dcpd/sched/step.c \
	dcpd/sched/cache.c \
	dcpd/sched/pin.c \
	dcpd/sched/output.c \
	dcpd/sched/status.c \
	dcpd/sched/page_map.c \
	dcpd/sched/null_engine.c

SCHED_FAKE = tests/unit/sched_fake.c tests/unit/sched_fake.h \
	tests/unit/sched_one.h tests/unit/sched_life.h \
	tests/unit/sched_engine.c

check_PROGRAMS += tests/unit/t_pages
TESTS += tests/unit/t_pages
tests_unit_t_pages_SOURCES = tests/unit/t_pages.c
tests_unit_t_pages_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_prefix
TESTS += tests/unit/t_prefix
tests_unit_t_prefix_SOURCES = tests/unit/t_prefix.c
tests_unit_t_prefix_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_host
TESTS += tests/unit/t_host
tests_unit_t_host_SOURCES = tests/unit/t_host.c tests/unit/model_util.h
tests_unit_t_host_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_plan
TESTS += tests/unit/t_plan
tests_unit_t_plan_SOURCES = tests/unit/t_plan.c
tests_unit_t_plan_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched
TESTS += tests/unit/t_sched
tests_unit_t_sched_SOURCES = tests/unit/t_sched.c $(SCHED_FAKE)
tests_unit_t_sched_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_end
TESTS += tests/unit/t_sched_end
tests_unit_t_sched_end_SOURCES = tests/unit/t_sched_end.c $(SCHED_FAKE)
tests_unit_t_sched_end_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_limit
TESTS += tests/unit/t_sched_limit
tests_unit_t_sched_limit_SOURCES = tests/unit/t_sched_limit.c $(SCHED_FAKE)
tests_unit_t_sched_limit_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_order
TESTS += tests/unit/t_sched_order
tests_unit_t_sched_order_SOURCES = tests/unit/t_sched_order.c $(SCHED_FAKE)
tests_unit_t_sched_order_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_status
TESTS += tests/unit/t_sched_status
tests_unit_t_sched_status_SOURCES = tests/unit/t_sched_status.c $(SCHED_FAKE)
tests_unit_t_sched_status_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_cache
TESTS += tests/unit/t_sched_cache
tests_unit_t_sched_cache_SOURCES = tests/unit/t_sched_cache.c $(SCHED_FAKE)
tests_unit_t_sched_cache_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_page_map
TESTS += tests/unit/t_page_map
tests_unit_t_page_map_SOURCES = tests/unit/t_page_map.c $(SCHED_FAKE)
tests_unit_t_page_map_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_preempt
TESTS += tests/unit/t_sched_preempt
tests_unit_t_sched_preempt_SOURCES = tests/unit/t_sched_preempt.c $(SCHED_FAKE)
tests_unit_t_sched_preempt_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/fuzz/fuzz_sched
TESTS += tests/fuzz/fuzz_sched
tests_fuzz_fuzz_sched_SOURCES = tests/fuzz/fuzz_sched.c $(SCHED_FAKE)
tests_fuzz_fuzz_sched_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_text
TESTS += tests/unit/t_sched_text
tests_unit_t_sched_text_SOURCES = tests/unit/t_sched_text.c $(SCHED_FAKE)
tests_unit_t_sched_text_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sched_ring
TESTS += tests/unit/t_sched_ring
tests_unit_t_sched_ring_SOURCES = tests/unit/t_sched_ring.c \
	tests/unit/sched_engine.c tests/unit/sched_fake.h
tests_unit_t_sched_ring_LDADD = libdcpclient.la $(DCPD_LIBS) $(TEST_LIBS)

noinst_PROGRAMS += tests/bench/bench_sched
tests_bench_bench_sched_SOURCES = tests/bench/bench_sched.c $(SCHED_FAKE)
tests_bench_bench_sched_LDADD = $(DCPD_LIBS)

EXTRA_DIST += doc/scheduler.md

TESTS += tests/integration/test_cache.py
EXTRA_DIST += tests/integration/test_cache.py

TESTS += tests/integration/test_host.py
EXTRA_DIST += tests/integration/test_host.py
