# kernels/cpu: the arithmetic (prim*.c, topk.c, sample.c) and its unit tests
noinst_LIBRARIES += libdcpk_cpu.a
libdcpk_cpu_a_SOURCES = \
	kernels/kernels.h kernels/layout.h kernels/cpu/prim.h \
	kernels/cpu/prim.c kernels/cpu/prim_body.h kernels/cpu/prim_avx.h \
	kernels/cpu/prim_portable.c \
	kernels/cpu/prim_avx2.c \
	kernels/cpu/prim_avx512.c kernels/cpu/topk.c kernels/cpu/sample.c \
	kernels/cpu/dequant.c
DCPK_LIBS += libdcpk_cpu.a

check_PROGRAMS += tests/unit/t_prim
TESTS += tests/unit/t_prim
tests_unit_t_prim_SOURCES = tests/unit/t_prim.c tests/unit/rnd.h
tests_unit_t_prim_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_topk
TESTS += tests/unit/t_topk
tests_unit_t_topk_SOURCES = tests/unit/t_topk.c tests/unit/rnd.h
tests_unit_t_topk_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

noinst_PROGRAMS += tests/bench/bench_prim
tests_bench_bench_prim_SOURCES = tests/bench/bench_prim.c
tests_bench_bench_prim_LDADD = $(DCPD_LIBS)

check_PROGRAMS += tests/unit/t_prim_scalar
TESTS += tests/unit/t_prim_scalar
tests_unit_t_prim_scalar_SOURCES = tests/unit/t_prim_scalar.c tests/unit/rnd.h
tests_unit_t_prim_scalar_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_layout
TESTS += tests/unit/t_layout
tests_unit_t_layout_SOURCES = tests/unit/t_layout.c
tests_unit_t_layout_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_dequant
TESTS += tests/unit/t_dequant
tests_unit_t_dequant_SOURCES = tests/unit/t_dequant.c tests/unit/rnd.h
tests_unit_t_dequant_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_sample
TESTS += tests/unit/t_sample
tests_unit_t_sample_SOURCES = tests/unit/t_sample.c tests/unit/rnd.h
tests_unit_t_sample_LDADD = $(DCPD_LIBS) $(TEST_LIBS)
