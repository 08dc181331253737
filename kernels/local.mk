# kernels/cpu: the operations; the arithmetic is in kernels/cpu/local.mk
libdcpd_a_SOURCES += kernels/kernels.h kernels/layout.h kernels/keep.h \
	kernels/graphs.h kernels/comm.h kernels/fail.h kernels/mirror.h \
	kernels/cpu/ctx.h kernels/cpu/ctx.c kernels/cpu/host.c \
	kernels/cpu/workers.h kernels/cpu/workers.c \
	kernels/cpu/weights.c kernels/cpu/product.c kernels/cpu/attn_in.c \
	kernels/cpu/select.c kernels/cpu/attend.c kernels/cpu/ffn.c \
	kernels/cpu/head.c kernels/cpu/measure.c \
	dcpd/model/forward.c dcpd/model/engine.c dcpd/model/engine.h \
	dcpd/model/graphs.c
