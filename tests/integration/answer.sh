#!/bin/sh
# One whole generation by the embedded model, its context sharded over eight
# ranks: the answer, the occupancy of every rank, and an orderly end.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

start --model "$TINY" --device cpu --tp 8 --dcp-size 8 --kv-bytes-per-rank 1MiB
ctl chat --temperature 0 --occupancy -j -- "Ann has 23 pears. Ben gives Ann" \
    "19 more. How many pears does Ann have now?" >"$work/o"
json "$work/o" 'o["content"].strip() == "42" and "42" in o["reasoning"]
    and o["finish_reason"] == "stop" and o["usage"]["reasoning_tokens"] > 0
    and o["tool_calls"] == []'
json "$work/o" 'len(o["ranks"]) == 8 and
    all(r["tokens"] > 0 for r in o["ranks"]) and
    max(r["tokens"] for r in o["ranks"]) -
    min(r["tokens"] for r in o["ranks"]) <= 1'
# A conversation that remembers
printf '%s\n%s\n' "Ann has 23 pears. Ben gives Ann 19 more. How many pears \
does Ann have now?" "Ann has 2 pears. Ben gives Ann 3 more. How many pears \
does Ann have now?" | ctl chat --temperature 0 >"$work/two" ||
    fail "two questions"
grep -qx 42 "$work/two" || fail "the first answer: $(cat "$work/two")"
# Nothing is dim here: a blank line stands before the answer.
[ "$(grep -xB 1 42 "$work/two" | head -n 1)" = "" ] ||
    fail "reasoning and answer are one: $(cat "$work/two")"
# What is no text is said, and not asked without it.
for what in question system; do
	rc=0
	case $what in
	question) ctl chat -- "$(printf 'a\377')" ;;
	system) ctl chat --system "$(printf '\377')" -- a ;;
	esac >"$work/o" 2>"$work/err" || rc=$?
	[ $rc = 2 ] && grep -q "$what is not UTF-8" "$work/err" ||
	    fail "a $what that is not UTF-8 ends with $rc: $(cat "$work/err")"
done
ctl status >"$work/o"
grep -q "pages used  cached  pages$" "$work/o" || fail "$(cat "$work/o")"
# A reader of the price that goes is no error. (No tarball has the script.)
if [ -e "$srcdir/tools/dcp_price.py" ]; then
	python3 -u "$srcdir/tools/dcp_price.py" 2>"$work/err" | head -n 1
fi >/dev/null
[ ! -s "$work/err" ] || fail "dcp_price.py | head: $(cat "$work/err")"
ctl check >/dev/null || fail "invariants"
ctl status -j >"$work/o"
json "$work/o" 'o["counters"]["requests_finished"] == 3 and
    o["counters"]["pages_used"] == 0'
stop 0
echo "all ok"
