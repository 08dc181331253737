#!/bin/sh
# Wrong configuration ends with exit code 78 and one last line that says what,
# where and what to change; sockets are taken over only from the dead.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

copy() {	# a model folder to damage
	rm -rf "$work/m"
	mkdir "$work/m"
	cp "$TINY"/*.json "$work/m"
	ln -s "$(realpath "$TINY")/model.safetensors" "$work/m/"
}
edit() {	# PYTHON statement over the config object c
	python3 -c 'import json, sys
p = sys.argv[1] + "/config.json"
c = json.load(open(p))
exec(sys.argv[2])
json.dump(c, open(p, "w"))' "$work/m" "$1"
}

# The model folder
refused "folder missing" "$work/none" config.json -- --model "$work/none"
refused "a name of a hub" "downloads nothing" "hf download no/such" -- \
    --model no/such
refused "a folder from elsewhere" "looked for from $(pwd -P), where" config -- \
    --model ./none-such
mkdir "$work/empty"
refused "folder empty" "$work/empty" config.json -- --model "$work/empty"
copy; edit 'c["model_type"] = "llama"'
refused "another architecture" llama glm_moe_dsa -- --model "$work/m"
copy; edit 'c["hidden_size"] = 512'
refused "wrong shape" "[2048, 512]" "[2048, 256]" -- --model "$work/m"
copy; edit 'c["num_hidden_layers"] = 7; c["indexer_types"] += ["full"] * 3'
refused "tensor missing" "model.layers." missing -- --model "$work/m"
copy; rm "$work/m/model.safetensors"
refused "no weights" "$work/m" safetensors -- --model "$work/m"
copy; rm "$work/m/model.safetensors"; mkdir "$work/m/model.safetensors"
refused "weights cannot be read" model.safetensors "" -- --model "$work/m"
copy; rm "$work/m/model.safetensors"
head -c 1000000 "$TINY/model.safetensors" >"$work/m/model.safetensors"
refused "file cut short" model.safetensors "" -- --model "$work/m"
copy; printf '{"model_type": ' >"$work/m/config.json"
refused "no JSON" config.json "" -- --model "$work/m"
copy; printf '{"version": 1' >"$work/m/tokenizer.json"
refused "damaged tokenizer" tokenizer.json "" -- --model "$work/m"
copy; rm "$work/m/config.json"; mkfifo "$work/m/config.json"
refused "config.json is a pipe" config.json "not a regular file" -- \
    --model "$work/m"
copy; rm "$work/m/tokenizer.json"; mkfifo "$work/m/tokenizer.json"
refused "tokenizer.json is a pipe" tokenizer.json "not a regular file" -- \
    --model "$work/m"

# Layout, memory, formats
refused "nothing to quantise" --quantize-activations "not quantised" -- \
    --model "$TINY" --quantize-activations
refused "dcp does not divide" --dcp-size "" -- --model "$TINY" --tp 8 \
    --attn-dp-size 2 --attn-cp-size 4 --dcp-size 8 --enable-cp-decode-attn-tp
refused "attention DP" --attn-dp-size "not built" -- --model "$TINY" --tp 8 \
    --attn-dp-size 2 --dcp-size 4
refused "heads" --tp heads -- --model "$TINY" --tp 16
refused "no such format" "want f32, bf16, auto or fp8_e4m3" "" -- \
    --model "$TINY" --kv-cache-dtype nope
refused "pool too small" --kv-bytes-per-rank "" -- --model "$TINY" \
    --kv-bytes-per-rank 1000
refused "context above the pool" --max-context 16000 -- --model "$TINY" \
    --kv-bytes-per-rank 1MiB --max-context 16000
refused "context above the model" --max-context 16384 -- --model "$TINY" \
    --max-context 20000
refused "quantization" --quantization none -- --model "$TINY" \
    --quantization fp8
refused "page size" --page-size 64 -- --model "$TINY" --page-size 128
refused "unknown flag" --dpc-size --dcp-size -- --model "$TINY" --dpc-size 8

# Devices: no module, no module at all, another release's, no GPU
DCPD_MODULE_DIR=$work refused "no CUDA module" "no CUDA module" \
    "--device cpu" -- --model "$TINY" --device cuda
echo nonsense >"$work/libdcp_cuda.so"
DCPD_MODULE_DIR=$(realpath --relative-to=. "$work") \
    refused "a module of a relative folder" "too short" "$(basename "$work")" -- \
    --model "$TINY" --device cuda
DCPD_MODULE_DIR=$work refused "a module that is none" libdcp_cuda.so \
    "--device cpu" -- --model "$TINY" --device cuda
if [ -n "${FAKE_MODULE_DIR:-}" ]; then
	export DCPD_MODULE_DIR="$FAKE_MODULE_DIR"
	FAKE_ABI=9 refused "another ABI" "another release" "from one build" \
	    -- --model "$TINY" --device cuda
	refused "no GPU" "no GPU here" "" -- --model "$TINY" --device cuda \
	    --kv-bytes-per-rank 1MiB
	FAKE_HANG=1 refused "a driver that hangs at the end" \
	    "ending without it" "" -- --model "$TINY" --device cuda \
	    --kv-bytes-per-rank 1MiB
	grep -q "error:.*no GPU here" "$work/log" ||
	    fail "a driver that hangs at the end: why it ended is not said"
	# Who stops it then hears of the failure all the same, and not of success.
	FAKE_HANG=1 "$DCPD" --model "$TINY" --device cuda \
	    --kv-bytes-per-rank 1MiB --socket "$work/s" 2>"$work/log" &
	hung=$!
	for _ in $(seq 600); do
		! grep -q "no GPU here" "$work/log" || break
		sleep 0.1
	done
	kill "$hung"
	rc=0
	wait "$hung" || rc=$?
	[ $rc = 78 ] || fail "SIGTERM while a failed start hangs: exit code $rc"
	# A device that gives errors may be well when systemd tries again.
	rc=0
	FAKE_LOST=1 timeout 60 "$DCPD" --model "$TINY" --device cuda \
	    --kv-bytes-per-rank 1MiB --socket "$work/s" 2>"$work/log" || rc=$?
	[ $rc = 1 ] || fail "a device that is lost: exit code $rc, want 1"
	grep -q "GPU 0: fell off" "$work/log" || fail "a lost device: not said"
	# 30 times --stuck-after: looked at last
	for how in memory open; do
		FAKE_HANG=$how timeout 60 "$DCPD" --socket "$work/$how" \
		    --model "$TINY" --device cuda --stuck-after 1 \
		    --kv-bytes-per-rank 1MiB 2>"$work/log.$how" &
		hangs="${hangs:-} $how=$!"
	done
	unset DCPD_MODULE_DIR
fi

# What the machine lacks is no mistake in the configuration.
rc=0
(ulimit -n 8; exec timeout 60 "$DCPD" --engine null --socket "$work/s") \
    2>"$work/log" || rc=$?
[ $rc = 1 ] || fail "few descriptors: exit code $rc, want 1"
grep -q "Too many open files" "$work/log" || fail "few descriptors: not said"

# Sockets
sock=$work/none/s
refused "no folder for the socket" "$work/none" "create it" -- --engine null
sock=$work/s
echo text >"$sock"
refused "a file in the socket's place" "not a socket" "$sock" -- --engine null
rm "$sock"
mkdir "$work/locked"
sock=$work/locked/s
(flock 9 && : >"$work/held" && exec sleep 100) 9<"$work/locked" &
holder=$!
while [ ! -e "$work/held" ]; do sleep 0.05; done
refused "somebody holds the folder" "is locked" "$sock" -- --engine null
kill "$holder"
sock=$work/s
start --engine null
refused "another daemon listens" "in use" --socket -- --engine null
ctl status -j >/dev/null || fail "the first daemon is not well"
[ "$(stat -c %a "$sock")" = 660 ] || fail "mode of the socket"
[ "$(stat -c %a "$sock.admin")" = 600 ] || fail "mode of the admin socket"
kill -9 "$daemon"
wait "$daemon" || :
daemon=
[ -S "$sock" ] || fail "the dead daemon's socket should lie here"
refused "no such group" --socket-group nonesuch -- --engine null \
    --socket-group nonesuch
start --engine null --socket-mode 600
[ "$(stat -c %a "$sock")" = 600 ] || fail "--socket-mode 600"
stop 0
[ ! -e "$sock" ] && [ ! -e "$sock.admin" ] || fail "sockets left behind"

# Only members of --socket-group; seen by a root that can be somebody else
as() {	# GID: dcpctl as nobody in that group
	setpriv --reuid 65534 --regid "$1" --clear-groups "$DCPCTL" \
	    --socket "$sock" generate --tokens 1 --max-tokens 2 -j
}
chmod 755 "$work"
gid=$(getent group daemon | cut -d: -f3) || gid=
if [ "$(id -u)" = 0 ] && [ -n "$gid" ] &&
    setpriv --reuid 65534 --clear-groups "$DCPCTL" help >/dev/null 2>&1; then
	start --engine null --socket-mode 666 --socket-group daemon
	[ "$(stat -c %g "$sock")" = "$gid" ] || fail "group of the socket"
	as "$gid" >"$work/o" 2>&1 || fail "a member: $(cat "$work/o")"
	as 65534 >"$work/o" 2>&1 && fail "no member, but let in"
	grep -q "not in group $gid" "$work/o" || fail "$(cat "$work/o")"
	as 65534 2>/dev/null && fail "a second time let in"
	# Who may read the stats page and not ask: told so, no fault is seen.
	rc=0
	setpriv --reuid 65534 --regid "$(stat -c %g "$sock.stats")" \
	    --clear-groups "$DCPCTL" --socket "$sock" status >"$work/o" 2>&1 ||
	    rc=$?
	[ $rc = 4 ] && grep -q "^problem .*ask as the daemon's user" \
	    "$work/o" || fail "status of another user: $rc $(cat "$work/o")"
	stop 0
else
	echo "not root: --socket-group not tried"
fi

# Not running: exit code 3
rc=0
ctl status 2>"$work/log" || rc=$?
[ $rc = 3 ] || fail "status without a daemon: $rc, want 3"
rc=0
ctl generate --prompt x 2>"$work/log" || rc=$?
[ $rc = 3 ] || fail "generate without a daemon: $rc, want 3"
rc=0
ctl nonsense 2>"$work/log" || rc=$?
[ $rc = 2 ] || fail "no such command: $rc, want 2"
rc=0
"$DCPCTL" stat 2>"$work/o" || rc=$?
[ $rc = 2 ] && grep -q "did you mean status" "$work/o" || fail "stat: $rc"
rc=0
"$DCPCTL" --socket >"$work/o" 2>&1 || rc=$?
[ $rc = 2 ] && grep -q "PATH is missing" "$work/o" || fail "--socket: $rc"
rc=0
"$DCPCTL" --socket "$sock" chat --tools "$work/none" x 2>"$work/o" || rc=$?
[ $rc = 2 ] && grep -q "^dcpctl: --tools: .*No such file" "$work/o" ||
    fail "no tools: $rc, $(cat "$work/o")"
"$DCPCTL" help chat >"$work/o" || fail "help chat"
grep -q "usage: dcpctl chat" "$work/o" || fail "help chat: $(cat "$work/o")"
"$DCPCTL" bench decode --help >"$work/want" || fail "bench decode --help"
"$DCPCTL" help bench decode >"$work/o" || fail "help bench decode"
cmp -s "$work/o" "$work/want" || fail "help bench decode: $(cat "$work/o")"
# Every line of help leaves a terminal of 80 columns its last one.
"$DCPCTL" help >"$work/help"
commands=$(sed -n '/^options/q; s/^  \([a-z]*\) .*/\1/p' "$work/help")
[ "$(echo "$commands" | wc -l)" -gt 15 ] || fail "commands: $commands"
for c in $commands "bench ipc" "bench decode" "bench prefill" "bench trace"; do
	"$DCPCTL" $c --help >>"$work/help" || fail "$c --help"
done
[ "$(grep -c ^usage: "$work/help")" -gt 20 ] || fail "$(cat "$work/help")"
! grep -E '^.{80}' "$work/help" >"$work/log" || fail "help of 80 columns"
rc=0
"$DCPCTL" help nothing >"$work/o" 2>&1 || rc=$?
[ $rc = 2 ] && grep -q "no such command" "$work/o" || fail "help nothing: $rc"

# A driver that does not come back, above: no configuration is to blame.
for h in ${hangs:-}; do
	rc=0 how=${h%=*}
	wait "${h#*=}" || rc=$?
	cp "$work/log.$how" "$work/log"
	[ $rc = 1 ] || fail "a driver that hangs in $how: $rc, want 1"
	grep -q "stuck: [a-z]* has not ended for 30 s: the device" "$work/log" ||
	    fail "a driver that hangs in $how: not said"
	[ ! -e "$work/$how" ] || fail "a driver that hangs in $how: its socket"
done
echo "all ok"
