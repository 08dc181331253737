#!/bin/sh
# Tests and figures of the CUDA part on a machine with GPUs:
#   tests/gpu/run.sh OUTDIR [BINDIR [STAGE]]
# BINDIR and STAGE: see tests/gpu/README. Builds nothing. The number of GPUs
# decides how many ranks there are, two, four or eight; RANKS=8 has so many
# anyway. Each part has a limit of its own and goes to OUTDIR/PART.log; a part
# that fails, or whose programs are not here, does not stop the others. Ends
# within TOTAL seconds (570); the
# last lines are a table. PARTS="peer_test graph" runs only these. Exit 0 when
# nothing failed.
out=${1:?usage: tests/gpu/run.sh OUTDIR [BINDIR [STAGE]]}
bin=${2:-build-cuda}
stage=${3:-stage}
here=$(dirname "$0")
seed=${SEED:-$(date +%s)}
begin=$(date +%s)
total=${TOTAL:-570}
table=
rc=0
mkdir -p "$out"
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=0 PYTHONDONTWRITEBYTECODE=1

row() {	# PART VERDICT SECONDS LAST-LINE
	table="$table$(printf '%-16s %-8s %4s s  %s' "$1" "$2" "$3" "$4")
"
}

part() {	# NAME LIMIT NEEDED COMMAND...: NEEDED is a file or program
	name=$1 limit=$2 needed=$3
	shift 3
	case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
	left=$((total - $(date +%s) + begin))
	if [ ! -e "$needed" ] && ! command -v "$needed" >/dev/null; then
		row "$name" "not run" 0 "$needed is not here"
		return
	fi
	if [ "$left" -lt 5 ]; then
		row "$name" "not run" 0 "no time was left"
		rc=1
		return
	fi
	limit=$((limit * more))
	[ "$limit" -le "$left" ] || limit=$left
	t=$(date +%s)
	timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
	status=$?
	t=$(($(date +%s) - t))
	last=$(tail -n 1 "$out/$name.log" | cut -c 1-90)
	case $status in
	0) row "$name" ok $t "$last" ;;
	124 | 137) row "$name" TIMEOUT $t "$last" ; rc=1 ;;
	*) row "$name" FAILED $t "$last" ; rc=1 ;;
	esac
	grep -E '^(FAIL|=+ (Error|Race)|.*Traceback)' "$out/$name.log" | head -8
}

two() {	# PART COMMAND...: a part that needs two GPUs
	if [ "$gpus" -ge 2 ]; then
		shift
		"$@"
		return
	fi
	case " ${PARTS:-$1} " in
	*" $1 "*) row "$1" "not run" 0 "needs two GPUs" ;;
	esac
}

module() {	# PART LIMIT: one of module_check.py's
	part "$1" "$2" "$bin/libdcp_cuda.so" python3 "$here/module_check.py" \
	    "$bin/fwd" "$bin/libdcp_cuda.so" "$1"
}

nvidia-smi -L | tee "$out/gpus.log"
gpus=$(grep -c '^GPU' "$out/gpus.log")
# Limits are those of one and two GPUs; with more come more ranks and layouts.
more=1
[ "$gpus" -lt 4 ] && [ "${RANKS:-2}" -le 2 ] || more=2
[ "$gpus" -lt 8 ] || more=3

part peer_test 40 "$bin/peer_test" "$bin/peer_test" "$seed"
module plain 60
module prefill 60
module graph 60
two peer module peer 40
two nccl module nccl 40
two nopeer module nopeer 60
module host 40
module wire 40
module edge 30
module mask 30
module fp8 150
module int4 40
part failstop 160 "$stage/usr/local/sbin/dcpd" python3 "$here/failstop.py" \
    "$stage" "$bin/libfault.so"
two nopeer-daemon part nopeer-daemon 60 "$stage/usr/local/sbin/dcpd" python3 \
    "$here/nopeer.py" "$stage"
for p in block-v32 step-v32 block-fp8 step-fp8 block-glm-fp8 step-glm-fp8 \
    block-glm batch-v32 batch-glm wire step-glm; do
	two price-$p part price-$p 60 "$bin/libdcp_cuda.so" python3 \
	    "$here/price.py" "$bin/fwd" "$bin/libdcp_cuda.so" $p
done
part memory 60 "$stage/usr/local/sbin/dcpd" python3 "$here/memory.py" \
    "$stage"
two agents part agents 150 "$stage/usr/local/sbin/dcpd" python3 \
    "$here/agents.py" "$stage"
part where 60 "$bin/libtrace.so" python3 "$here/where.py" "$bin/fwd" \
    "$bin/libdcp_cuda.so" "$bin/libtrace.so"
part kernel_test 90 "$bin/kernel_test" "$bin/kernel_test" "$seed"
part memcheck 60 compute-sanitizer compute-sanitizer --tool memcheck \
    --error-exitcode 1 "$bin/kernel_test" "$seed" short
part racecheck 60 compute-sanitizer compute-sanitizer --tool racecheck \
    --error-exitcode 1 "$bin/kernel_test" "$seed" short value
part torch_check 60 "$bin/libdcpg.so" python3 "$here/torch_check.py" \
    "$bin/libdcpg.so"
part kernel_bench 80 "$bin/kernel_bench" "$bin/kernel_bench"

for p in "$out"/price-*.log; do
	[ ! -f "$p" ] || grep -E '^ *[0-9]+k|^[a-z]+,|^wire' "$p"
done
[ ! -f "$out/peer_test.log" ] || grep '^time' "$out/peer_test.log"
[ ! -f "$out/kernel_bench.log" ] || grep anchor "$out/kernel_bench.log"
printf '%s' "$table" | tee "$out/summary"
exit $rc
