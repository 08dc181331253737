#!/bin/sh
# Build the kernels of dcpg.h and their test programs, one file at a time:
#   kernels/cuda/build.sh OUTDIR
# leaves libdcpg.so, kernel_test, kernel_bench, peer_test, libfault.so and
# libtrace.so there; the backend that calls them is not among it. Warnings are
# errors. NVCC names the compiler.
set -e
cd "$(dirname "$0")/../.."
out=${1:?usage: kernels/cuda/build.sh OUTDIR}
nvcc=${NVCC:-nvcc}
flags="-std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I.
	-Xcompiler -Wall,-fPIC -Werror all-warnings -lineinfo"
mkdir -p "$out"

build() {	# SOURCE: compiled when it or a header is newer than its object
	obj=$out/$(basename "$1" .cu).o
	if [ -f "$obj" ] && [ -z "$(find kernels tests/gpu -newer "$obj" \
	    \( -name '*.h' -o -name '*.cuh' -o -path "$1" \))" ]; then
		return
	fi
	$nvcc $flags -c "$1" -o "$obj"
}

objs=
for f in attend index index_rows select value query route route_rows experts \
    experts4 linear init peer; do
	build "kernels/cuda/$f.cu"
	objs="$objs $out/$f.o"
done
build tests/gpu/kernel_test.cu
build tests/gpu/experts_test.cu
build tests/gpu/kernel_bench.cu
build tests/gpu/experts_bench.cu
build tests/gpu/rows_test.cu
build tests/gpu/value_test.cu
build tests/gpu/query_test.cu
build tests/gpu/words_test.cu
build kernels/cuda/norm.cu	# of the backend: words_test has what it calls
build tests/gpu/peer_test.cu
build tests/gpu/fault.cu
$nvcc $flags -shared $objs -o "$out/libdcpg.so"
$nvcc $flags "$out/kernel_test.o" "$out/experts_test.o" "$out/rows_test.o" \
	"$out/value_test.o" "$out/query_test.o" "$out/words_test.o" \
	"$out/norm.o" $objs -o "$out/kernel_test"
$nvcc $flags "$out/kernel_bench.o" "$out/experts_bench.o" $objs \
	-o "$out/kernel_bench"
$nvcc $flags "$out/peer_test.o" "$out/peer.o" "$out/query.o" \
	-o "$out/peer_test"
$nvcc $flags -shared "$out/fault.o" -o "$out/libfault.so"
$nvcc $flags -shared tests/gpu/trace.cc -o "$out/libtrace.so" -lcupti
