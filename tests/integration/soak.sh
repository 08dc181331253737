#!/bin/sh
# Many requests leave nothing behind: memory, descriptors and pages are what
# they were. Ten times more than the queue takes is refused at once, and the
# next request is served. DCPD_TEST_LONG: 100,000 requests instead of 6,000.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

rounds=20
[ "${DCPD_TEST_LONG:-0}" = 0 ] || rounds=490
round() {	# 200 requests
	ctl bench decode --streams 200 --prompt-tokens 70 --max-tokens 4 \
	    >/dev/null || fail "requests"
}
rss() { awk '/^VmRSS/ { print $2 }' "/proc/$daemon/status"; }
fds() { ls "/proc/$daemon/fd" | wc -l; }

start --engine null --dcp-size 4 --tp 4 --queue-max 250
n=0
while [ $n -lt 10 ]; do round; n=$((n + 1)); done
rss0=$(rss)
fds0=$(fds)
n=0
while [ $n -lt $rounds ]; do round; n=$((n + 1)); done
rss1=$(rss)
fds1=$(fds)
echo "after 2000 requests $rss0 KiB, $fds0 descriptors; after" \
    "$((rounds * 200)) more $rss1 KiB, $fds1"
# An allocator's noise is allowed; a leak of 200 bytes a request is not.
[ $((rss1 - rss0)) -lt $((1024 + rounds * 200 * 200 / 1024)) ] ||
    fail "memory grew from $rss0 to $rss1 KiB"
[ "$fds1" -le $((fds0 + 2)) ] || fail "descriptors: $fds0, then $fds1"

ctl bench decode --streams 900 --max-tokens 20000 >/dev/null 2>"$work/err" &&
    fail "overload was taken"
grep -q "queue" "$work/err" || fail "overload: $(cat "$work/err")"
ctl generate --tokens 1 --max-tokens 2 -j >/dev/null || fail "after overload"
n=0
until ctl status -j >"$work/o" && grep -q '"pages_used": 0' "$work/o"; do
	n=$((n + 1)); [ $n -lt 600 ] || fail "pages are held by nobody"
	sleep 0.1
done
json "$work/o" 'o["counters"]["requests_refused"] > 0 and o["live"] == 0'
ctl check >/dev/null || fail "invariants"
stop 0
echo "all ok"
