#!/bin/sh
# Tests and figures of the CUDA kernels on a machine with a GPU:
#   tests/gpu/run.sh OUTDIR [BINDIR]
# BINDIR holds what kernels/cuda/build.sh made (default: build-cuda). Builds
# nothing; correctness first, then the benchmark; full logs in OUTDIR, a short
# table last. Ends within 5 minutes; exit 0 when every case held.
out=${1:?usage: tests/gpu/run.sh OUTDIR [BINDIR]}
bin=${2:-build-cuda}
here=$(dirname "$0")
mkdir -p "$out"
rc=0

step() {	# NAME SECONDS COMMAND...: its log, its last line, its verdict
	name=$1 limit=$2
	shift 2
	if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then
		verdict=ok
	else
		verdict=FAILED
		rc=1
		grep -v '^ok' "$out/$name.log" | head -20
	fi
	echo "$name: $verdict: $(tail -n 1 "$out/$name.log")"
}

for prog in kernel_test kernel_bench libdcpg.so; do
	if [ ! -e "$bin/$prog" ]; then
		echo "run.sh: $bin/$prog is missing: run kernels/cuda/build.sh" \
		    "$bin where nvcc is, then bring the folder here" >&2
		exit 2
	fi
done
seed=${SEED:-$(date +%s)}
step kernel_test 120 "$bin/kernel_test" "$seed"
if python3 -c 'import torch' 2>/dev/null; then
	step torch_check 60 python3 "$here/torch_check.py" "$bin/libdcpg.so"
else
	echo "torch_check: not run: no PyTorch here"
fi
if command -v compute-sanitizer >/dev/null; then
	step memcheck 100 compute-sanitizer --tool memcheck \
	    --error-exitcode 1 "$bin/kernel_test" "$seed" short
else
	echo "memcheck: not run: no compute-sanitizer here"
fi
step kernel_bench 100 "$bin/kernel_bench"
grep anchor "$out/kernel_bench.log"
exit $rc
