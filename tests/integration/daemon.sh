#!/bin/sh
# The life of a daemon without a model: requests, drain, signals, a step that
# takes long.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

now_ms() { date +%s%3N; }

start --engine null --null-step-us 2000 --dcp-size 4 --tp 4
ctl version | grep -q "dcpd 0" || fail "version"
ctl status -j >"$work/o"
json "$work/o" 'o["ready"] and o["state"] == "ready" and len(o["ranks"]) == 4'
json "$work/o" '[p["name"] for p in o["phases"]] ==
    ["config", "open", "self-test", "listening"]'

# The stream is deterministic, and what -j prints is what was promised.
ctl generate --tokens 1,2,3 --max-tokens 20 --top-logprobs 3 -j >"$work/a"
ctl generate --tokens 1,2,3 --max-tokens 20 -j >"$work/b"
json "$work/a" 'len(o["tokens"]) == 20 and o["finish_reason"] == "length"
    and o["usage"]["prompt_tokens"] == 3
    and o["usage"]["completion_tokens"] == 20
    and len(o["top_logprobs"]) == 20
    and all(len(t) == 3 for t in o["top_logprobs"])
    and all(t[0][1] >= t[1][1] >= t[2][1] for t in o["top_logprobs"])
    and all(t[0][0] == k for t, k in zip(o["top_logprobs"], o["tokens"]))'
json "$work/b" 'o["tokens"] == '"$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["tokens"])' "$work/a")"' and
    o["top_logprobs"] == []'

# Mistakes of a request come back as its error.
for bad in "--tokens 5000 " "--tokens 1,x" "--prompt x" "--max-tokens 3" \
    "--tokens 1 --top-p 7 --temperature 1" "--tokens 1 --nonsense" \
    "--tokens 1 --logit-bias 4294967297:5" \
    "--tokens 1 --logprobs" "--tokens 1 --top-logprobs 2" "--tokens 1 --echo"
do
	# shellcheck disable=SC2086
	if ctl generate $bad >/dev/null 2>"$work/err"; then
		fail "generate $bad: not refused"
	fi
	[ "$(wc -l <"$work/err")" = 1 ] || fail "generate $bad: $(cat "$work/err")"
done

rc=0; ctl chat --logprobs hello 2>"$work/err" || rc=$?
[ $rc = 2 ] || fail "chat --logprobs ends with $rc, want 2"
rc=0; "$DCPD" --help 2>"$work/err" >/dev/full || rc=$?
[ $rc = 1 ] && grep -q "standard output" "$work/err" ||
    fail "--help into a full file ends with $rc: $(cat "$work/err")"

# Seen and cancelled from outside
"$DCPCTL" --socket "$sock" generate --tokens 7 --max-tokens 100000 -j \
    >"$work/c" 2>"$work/err" &
client=$!
until_request
ctl requests -j >"$work/r"
json "$work/r" 'len(o) == 1 and o[0]["prompt"] == 1'
ctl clients -j >"$work/o"
json "$work/o" 'any(c["pid"] == '$client' for c in o)'
sleep 0.2
ctl clients | awk 'NR > 1 && $6 > 0 { n++ } END { exit !n }' ||
    fail "the age of a client: $(ctl clients)"
id=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))[0]["id"])' "$work/r")
ctl cancel 999999 2>"$work/err" && fail "cancel of nothing"
ctl cancel "$id"
rc=0; wait $client || rc=$?
[ $rc = 1 ] || fail "a cancelled generate ends with $rc, want 1"
ctl check >/dev/null || fail "check"
ctl config -j >"$work/o"
json "$work/o" 'o["dcp-size"] == 4 and o["engine"] == "null"'

# Drain refuses new ones, exit code 4; resume takes them again.
ctl drain --wait >/dev/null
rc=0; ctl status >/dev/null || rc=$?
[ $rc = 4 ] || fail "status while draining: $rc, want 4"
ctl generate --tokens 1 2>"$work/err" >/dev/null && fail "drain let one in"
ctl resume >/dev/null
ctl generate --tokens 1 --max-tokens 2 -j >/dev/null || fail "resume"

# The admin socket survives nonsense and somebody who never reads.
python3 - "$sock.admin" <<'PY' || fail "admin socket and bad lines"
import json, socket, sys
def con():
    s = socket.socket(socket.AF_UNIX); s.settimeout(60)
    s.connect(sys.argv[1]); return s
def ask(line):
    s = con(); s.sendall(line); return json.loads(s.makefile().readline())
assert not ask(b"nonsense\n")["ok"]
assert not ask(b"[1]\n")["ok"]
assert not ask(b'{"cmd": "nothing"}\n')["ok"]
assert not ask(b'{"cmd": "cancel"}\n')["ok"]
assert not ask(b'{"cmd": "cancel", "id": -1}\n')["ok"]
assert "status" in ask(b'{"cmd": "help"}\n')["result"]
s = con()
try:
    s.sendall(b"x" * (5 << 20))
    assert s.recv(10) == b""
except (ConnectionResetError, BrokenPipeError): pass
lazy = [con() for _ in range(8)]
for l in lazy:
    l.setblocking(False)
    try:
        while True: l.send(b'{"cmd": "status"}\n')
    except BlockingIOError: pass
assert ask(b'{"cmd": "status"}\n')["ok"]	# not held up
PY

# SIGTERM: what runs is finished first.
ctl generate --tokens 1 --max-tokens 1000 -j >"$work/o" &
client=$!
until_request
stop 0
wait $client || fail "the drained request"
json "$work/o" 'len(o["tokens"]) == 1000'

# A second SIGTERM does not wait for it; resume does not undo the first.
start --engine null --null-step-us 10000
ctl generate --tokens 1 --max-tokens 100000 -j >/dev/null 2>&1 &
client=$!
until_request
kill -TERM "$daemon"
n=0
until ctl status | grep -q stopping; do
	n=$((n + 1))
	[ $n -lt 600 ] || fail "SIGTERM does not show in status"
	sleep 0.05
done
ctl resume 2>"$work/err" && fail "resume undid the end of the daemon"
grep -q "is ending" "$work/err" || fail "resume: $(cat "$work/err")"
sleep 0.3
kill -0 "$daemon" 2>/dev/null || fail "did not drain"
t=$(now_ms)
stop 0
[ $(($(now_ms) - t)) -lt 25000 ] || fail "the second signal waited"
wait $client && fail "the cancelled request ended well"

# --drain-timeout bounds it, too.
start --engine null --null-step-us 10000 --drain-timeout 0.5
ctl generate --tokens 1 --max-tokens 100000 -j >/dev/null 2>&1 &
client=$!
until_request
t=$(now_ms)
stop 0
[ $(($(now_ms) - t)) -lt 25000 ] || fail "--drain-timeout did not bound"
wait $client || :

# No descriptors left: it sleeps all the same, and serves again when there are.
(ulimit -n 20; exec "$DCPD" --engine null --socket "$sock" 2>"$work/log") &
daemon=$!
n=0
until ctl status -j >/dev/null 2>&1; do
	n=$((n + 1))
	[ $n -lt 600 ] || fail "not ready with 20 descriptors"
	sleep 0.1
done
python3 - "$sock.admin" "$daemon" <<'PY' || fail "no descriptors left"
import socket, sys, time
def ticks():
    f = open(f"/proc/{sys.argv[2]}/stat").read().rsplit(")", 1)[1].split()
    return int(f[11]) + int(f[12])
held = []
for i in range(15):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
time.sleep(0.3)
before = ticks()
time.sleep(2)
assert ticks() - before < 10, f"{ticks() - before} ticks while idle"
PY
ctl status -j >/dev/null || fail "status when descriptors are free again"
stop 0

# Started with standard descriptors closed, it has none of its own there.
"$DCPD" --engine null --null-step-us 300 --socket "$sock" <&- >&- 2>&- &
daemon=$!
n=0
until ctl status -j >/dev/null 2>&1; do
	n=$((n + 1))
	[ $n -lt 600 ] || fail "not ready with closed descriptors"
	sleep 0.1
done
for i in 0 1 2; do
	[ "$(readlink "/proc/$daemon/fd/$i")" = /dev/null ] ||
	    fail "descriptor $i is $(readlink "/proc/$daemon/fd/$i")"
done
# Nor has dcpctl, and it says by its exit code that it could not print.
"$DCPCTL" --socket "$sock" generate --tokens 1 --max-tokens 10000 \
    <&- >&- 2>&- &
client=$!
until_request
for i in 0 1 2; do
	[ "$(readlink "/proc/$client/fd/$i")" = /dev/null ] ||
	    fail "dcpctl's descriptor $i is $(readlink "/proc/$client/fd/$i")"
done
rc=0; wait $client || rc=$?
[ $rc = 1 ] || fail "dcpctl with nowhere to print ends with $rc, want 1"
stop 0

# An engine that fails ends its requests with an error, and the process with 1.
start --engine null --null-fail-after 20
ctl generate --tokens 1 --max-tokens 1000 -j >"$work/o" 2>"$work/err" &&
    fail "a request survived its engine"
grep -q "null-fail-after" "$work/err" || fail "the error: $(cat "$work/err")"
rc=0; wait "$daemon" || rc=$?
daemon=
[ $rc = 1 ] || fail "a failed engine ends with $rc, want 1"
tail -n 1 "$work/log" | grep -q "error: .*step 21 failed" ||
    fail "the last line: $(tail -n 1 "$work/log")"
[ ! -e "$sock" ] || fail "the failed daemon's socket was left"

# One that fails while what runs is finished is no good end either.
start --engine null --null-step-us 10000 --null-fail-after 300
ctl generate --tokens 1 --max-tokens 100000 -j >/dev/null 2>&1 &
client=$!
until_request
stop 1
wait $client && fail "a request survived its engine, draining"
tail -n 1 "$work/log" | grep -q "error: .*step 301 failed" ||
    fail "the last line: $(tail -n 1 "$work/log")"

# While a step lasts, status and requests answer. Whether they all did before it
# ended; not to be told on a machine that lets it end before we look.
look_in_a_step() {
	"$DCPCTL" --socket "$sock" generate --tokens 1 --max-tokens 1 -j \
	    >"$work/o" &
	client=$!
	until ctl requests -j | grep -Eq '"state": "(prefill|decode)"' ||
	    [ -s "$work/o" ] || ! kill -0 $client 2>/dev/null
	do
		sleep 0.05
	done
	ctl status -j >"$work/st" || fail "status in a long step"
	ctl requests -j >"$work/r" || fail "requests in a long step"
	in_time=false
	[ -s "$work/o" ] || ! kill -0 $client 2>/dev/null || in_time=true
	wait $client || fail "the slow request"
	$in_time
}

start --engine null --null-step-us 8000000
n=0
until look_in_a_step; do
	n=$((n + 1))
	[ $n -lt 5 ] || fail "a long step holds up dcpctl"
done
json "$work/r" 'len(o) == 1'
json "$work/st" 'o["live"] == 1'
stop 0
echo "all ok"
