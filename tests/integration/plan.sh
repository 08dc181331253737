#!/bin/sh
# The memory plan comes from a config.json alone, whatever this machine has,
# and D ranks hold D times the tokens of one from the same bytes.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"
export DCPD

for config in glm-5.2 deepseek-v3.2; do
	for kv in bf16 fp8_e4m3; do
		one=
		for dcp in 1 2 4 8; do
			ctl plan --model "$srcdir/tests/data/configs/$config.json" \
			    --tp 8 --dcp-size $dcp --kv-cache-dtype $kv \
			    --kv-bytes-per-rank 16GiB --device cuda -j \
			    >"$work/o" || fail "$config $kv dcp $dcp"
			tokens=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["tokens"])' "$work/o")
			[ -n "$one" ] || one=$tokens
			[ "$tokens" -ge $((dcp * one)) ] &&
			    [ "$tokens" -lt $((dcp * (one + 2 * 64))) ] ||
			    fail "$config $kv: $tokens at dcp $dcp, $one at 1"
			echo "$config $kv dcp $dcp: $tokens tokens"
		done
	done
	# Too large for this machine: a plan all the same, and a word about it.
	ctl plan --model "$srcdir/tests/data/configs/$config.json" --tp 8 \
	    --dcp-size 8 >"$work/o" 2>"$work/log" || fail "plan on this machine"
	grep -q "a token takes" "$work/o" || fail "no plan: $(cat "$work/o")"
done
# Without a GPU: how large each must be.
gpus() {	# MORE FLAGS: bytes of a rank, and least bytes of a GPU
	ctl plan --model "$srcdir/tests/data/configs/glm-5.2.json" --tp 8 \
	    --dcp-size 8 --device cuda -j "$@" >"$work/o" || fail "plan $*"
	python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
print(o["ranks"][0]["planned"]["total"], o["gpu_bytes_least"])' "$work/o"
}
gpus | awk '{ exit !($2 * 0.85 > $1 && $2 * 0.85 < $1 * 1.01) }' ||
    fail "GPUs by the fraction: $(gpus)"
gpus --ranks-per-gpu 4 --mem-fraction-static 0.5 |
    awk '{ exit !($2 / 8 > $1 && $2 / 8 < $1 * 1.01) }' ||
    fail "four ranks a GPU: $(gpus --ranks-per-gpu 4)"
gpus --kv-bytes-per-rank 1GiB | awk '{ exit !($2 == $1) }' ||
    fail "GPUs by bytes: $(gpus --kv-bytes-per-rank 1GiB)"
ctl plan --model "$srcdir/tests/data/configs/glm-5.2.json" --tp 8 \
    --device cuda | grep -q "memory: each GPU must have" || fail "no such line"
# A budget that was asked for is one.
refused "does not fit" "nothing is left" --mem-fraction-static -- --plan \
    --model "$srcdir/tests/data/configs/glm-5.2.json" --tp 8 \
    --mem-fraction-static 0.5
refused "FP8 of a checkpoint without" "has no FP8 weights" \
    --fp8-gemm-backend -- --plan --device cuda --tp 8 \
    --model "$srcdir/tests/data/configs/glm-5.2.json" \
    --fp8-gemm-backend cublaslt
python3 - "$srcdir/tests/data/configs/deepseek-v3.2.json" "$work/config.json" \
    <<'EOF' || fail "no config.json to change"
import json, sys
c = json.load(open(sys.argv[1]))
c["quantization_config"] = {"quant_method": "fp8"}
json.dump(c, open(sys.argv[2], "w"))
EOF
refused "FP8 with a scale a row" "128 x 128 blocks" \
    --fp8-gemm-backend -- --plan --device cuda --tp 8 \
    --model "$work/config.json" --fp8-gemm-backend cublaslt
DCPD=/nonexistent ctl plan --model x 2>"$work/log" && fail "no dcpd at all"
grep -q DCPD "$work/log" || fail "$(cat "$work/log")"
echo "all ok"
