# libdcp_cuda.so: the backend of --device cuda, opened by dcpd when asked for.
# Host code is compiled by nvcc, so it has flags of its own.
EXTRA_DIST += $(cuda_sources) kernels/cuda/dcpg.h kernels/cuda/device.cuh \
	kernels/cuda/rowops.cuh kernels/cuda/ptx.cuh kernels/cuda/digit.cuh \
	kernels/cuda/attend.cuh kernels/cuda/attend_gather.cuh \
	kernels/cuda/attend_heads.cuh kernels/cuda/attend_roles.cuh \
	kernels/cuda/attend_out.cuh kernels/cuda/bins.cuh \
	kernels/cuda/wgmma.cuh \
	kernels/cuda/peer.cuh kernels/cuda/merge.cuh \
	kernels/cuda/codes.cuh kernels/cuda/select.cuh kernels/cuda/offers.cuh \
	kernels/cuda/launch.cuh kernels/cuda/experts.cuh \
	kernels/cuda/build.sh \
	tests/gpu/gpu_test.h tests/gpu/peers.h tests/gpu/kernel_test.cu \
	tests/gpu/kernel_bench.cu tests/gpu/experts_test.cu \
	tests/gpu/experts_bench.cu tests/gpu/torch_check.py tests/gpu/run.sh \
	tests/gpu/peer_test.cu tests/gpu/fault.cu tests/gpu/module_check.py \
	tests/gpu/price.py tests/gpu/prefill.py tests/gpu/failstop.py \
	tests/gpu/where.py tests/gpu/rows_test.cu \
	tests/gpu/value_test.cu tests/gpu/words_test.cu \
	tests/gpu/query_test.cu tests/gpu/queries.h \
	tests/gpu/trace.cc tests/gpu/stage.py tests/gpu/agents.py \
	tests/gpu/memory.py tests/gpu/nopeer.py tests/lib/structs.py \
	tests/gpu/README tests/integration/test_structs.py
TESTS += tests/integration/test_structs.py
cuda_sources = kernels/cuda/backend.cu kernels/cuda/weights.cu \
	kernels/cuda/product.cu kernels/cuda/norm.cu kernels/cuda/attn_in.cu \
	kernels/cuda/select_op.cu kernels/cuda/prefill.cu \
	kernels/cuda/attend_op.cu kernels/cuda/wire.cu \
	kernels/cuda/ffn.cu kernels/cuda/sample_op.cu \
	kernels/cuda/init.cu kernels/cuda/attend.cu kernels/cuda/index.cu \
	kernels/cuda/index_rows.cu kernels/cuda/select.cu \
	kernels/cuda/value.cu kernels/cuda/query.cu kernels/cuda/route.cu \
	kernels/cuda/route_rows.cu \
	kernels/cuda/experts.cu kernels/cuda/experts4.cu \
	kernels/cuda/linear.cu kernels/cuda/host.cu \
	kernels/cuda/peer.cu kernels/cuda/graph.cu kernels/cuda/nccl.cu \
	kernels/cuda/mirror.cu kernels/cuda/lost.cu \
	kernels/cuda/peek.cu kernels/cuda/fill.cu kernels/cuda/measure.cu

if CUDA
moduledir = $(pkglibdir)
module_DATA = libdcp_cuda.so
cuda_objects = $(cuda_sources:.cu=.o) kernels/cuda/dequant.o \
	kernels/cuda/prim.o
CLEANFILES += libdcp_cuda.so $(cuda_objects)
NVCC_FLAGS = -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a \
	-Xcompiler -Wall,-fPIC,-fvisibility=hidden $(NVCC_WERROR)

SUFFIXES = .cu
.cu.o:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	    $(NVCC) $(NVCC_FLAGS) -I$(top_srcdir) -c $< -o $@
$(cuda_sources:.cu=.o): kernels/kernels.h kernels/layout.h kernels/keep.h \
	kernels/graphs.h kernels/comm.h kernels/fail.h kernels/mirror.h \
	kernels/cuda/dcpg.h kernels/cuda/device.cuh kernels/cuda/rowops.cuh \
	kernels/cuda/ptx.cuh kernels/cuda/digit.cuh kernels/cuda/attend.cuh \
	kernels/cuda/attend_gather.cuh kernels/cuda/attend_heads.cuh \
	kernels/cuda/attend_roles.cuh kernels/cuda/attend_out.cuh \
	kernels/cuda/wgmma.cuh kernels/cuda/bins.cuh \
	kernels/cuda/peer.cuh kernels/cuda/merge.cuh kernels/cuda/codes.cuh \
	kernels/cuda/launch.cuh kernels/cuda/experts.cuh \
	kernels/cuda/select.cuh kernels/cuda/offers.cuh

# The loader shares the CPU's dequantisation.
kernels/cuda/dequant.o: kernels/cpu/dequant.c kernels/cpu/prim.h \
	kernels/keep.h dcpd/base/thread.h
kernels/cuda/prim.o: kernels/cpu/prim.c kernels/cpu/prim.h
kernels/cuda/dequant.o kernels/cuda/prim.o:
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(AM_CPPFLAGS) -I. $(DCPD_CFLAGS) \
	    -O2 -ffunction-sections -fdata-sections \
	    -c $(top_srcdir)/kernels/cpu/$(*F).c -o $@

libdcp_cuda.so: $(cuda_objects)
	$(AM_V_CCLD)$(NVCC) -shared $(cuda_objects) -o $@ -lcublasLt \
	    -Xlinker --no-undefined,--gc-sections
endif
