# dcpd/model, dcpd/parallel, the memory plan, and their unit tests
libdcpd_a_SOURCES += dcpd/model/model.h \
	dcpd/model/config.c dcpd/model/dummy.c dcpd/model/dummy.h \
	dcpd/model/keys.c dcpd/model/keys.h \
	dcpd/model/place.c dcpd/model/place.h \
	dcpd/model/quant.c dcpd/model/quant.h \
	dcpd/model/finite.c dcpd/model/finite.h \
	dcpd/model/floor.c dcpd/model/floor.h \
	dcpd/model/safetensors.c dcpd/model/safetensors.h \
	dcpd/model/source.c dcpd/model/source.h \
	dcpd/model/tensors.c dcpd/model/tensors.h \
	dcpd/model/weights.c dcpd/model/wbytes.c
libdcpd_a_SOURCES += dcpd/kv/memplan.c dcpd/kv/memplan.h dcpd/kv/memtable.c
libdcpd_a_SOURCES += dcpd/parallel/topology.c dcpd/parallel/topology.h \
	dcpd/parallel/way.c

check_PROGRAMS += tests/unit/t_finite
TESTS += tests/unit/t_finite
tests_unit_t_finite_SOURCES = tests/unit/t_finite.c
tests_unit_t_finite_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_floor
TESTS += tests/unit/t_floor
tests_unit_t_floor_SOURCES = tests/unit/t_floor.c tests/unit/model_util.h
tests_unit_t_floor_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_graphs
TESTS += tests/unit/t_graphs
tests_unit_t_graphs_SOURCES = tests/unit/t_graphs.c tests/unit/model_util.h
tests_unit_t_graphs_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_config
TESTS += tests/unit/t_config
tests_unit_t_config_SOURCES = tests/unit/t_config.c tests/unit/model_util.h \
	tests/unit/golden_rope.h
tests_unit_t_config_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_safetensors
TESTS += tests/unit/t_safetensors
tests_unit_t_safetensors_SOURCES = tests/unit/t_safetensors.c \
	tests/unit/model_util.h tests/unit/st_util.h
tests_unit_t_safetensors_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_topology
TESTS += tests/unit/t_topology
tests_unit_t_topology_SOURCES = tests/unit/t_topology.c tests/unit/model_util.h
tests_unit_t_topology_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_way
TESTS += tests/unit/t_way
tests_unit_t_way_SOURCES = tests/unit/t_way.c tests/unit/model_util.h
tests_unit_t_way_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_weights
TESTS += tests/unit/t_weights
tests_unit_t_weights_SOURCES = tests/unit/t_weights.c \
	tests/unit/checkpoint.h tests/unit/model_util.h tests/unit/st_util.h
tests_unit_t_weights_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_memplan
TESTS += tests/unit/t_memplan
tests_unit_t_memplan_SOURCES = tests/unit/t_memplan.c tests/unit/model_util.h
tests_unit_t_memplan_LDADD = $(DCPD_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/fuzz/fuzz_safetensors
TESTS += tests/fuzz/fuzz_safetensors
tests_fuzz_fuzz_safetensors_SOURCES = tests/fuzz/fuzz_safetensors.c \
	$(FUZZ_DRIVER)
tests_fuzz_fuzz_safetensors_LDADD = $(DCPD_LIBS)
EXTRA_DIST += tools/golden_rope.py \
	tests/data/configs/deepseek-v3.2.json tests/data/configs/glm-5.json \
	tests/data/configs/glm-5.2.json
