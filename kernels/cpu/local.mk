# kernels/cpu: the arithmetic (prim*.c, topk.c, sample.c) and its unit tests
