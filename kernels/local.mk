# kernels/cpu: the operations (ops_*.c); the arithmetic is in kernels/cpu/local.mk
