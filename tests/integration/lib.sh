# Helpers of the shell tests. Sourced. $DCPD and $DCPCTL come from the test
# harness; run alone, from the build folder's root, they are found there.

: "${srcdir:=.}"
: "${DCPD:=$PWD/dcpd/dcpd}"
: "${DCPCTL:=$PWD/dcpctl/dcpctl}"
TINY=$srcdir/models/dcp-tiny
work=$(mktemp -d "${TMPDIR:-/tmp}/dcpd-test.XXXXXX")
sock=$work/s
daemon=

cleanup() {
	[ -z "$daemon" ] || { kill -9 "$daemon" 2>/dev/null || :; }
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

fail() {
	echo "FAIL: $*" >&2
	[ ! -s "$work/log" ] || { echo "--- log:"; tail -n 20 "$work/log"; } >&2
	exit 1
}

# refused WHAT WORD WORD -- FLAGS: exit code 78, a last line with both words,
# no socket left behind.
refused() {
	what=$1 w1=$2 w2=$3
	shift 4
	rc=0
	timeout 60 "$DCPD" --socket "$sock" "$@" >/dev/null 2>"$work/log" ||
	    rc=$?
	[ $rc = 78 ] || fail "$what: exit code $rc, want 78"
	last=$(tail -n 1 "$work/log")
	case $last in
	*error:*"$w1"*) ;;
	*) fail "$what: the last line has not \"$w1\": $last" ;;
	esac
	case $last in
	*"$w2"*) ;;
	*) fail "$what: the last line has not \"$w2\": $last" ;;
	esac
	echo "ok: $what: ${last#*error: }"
}

# start FLAGS: a daemon that is ready, $daemon.
start() {
	"$DCPD" --socket "$sock" "$@" >/dev/null 2>"$work/log" &
	daemon=$!
	n=0
	until "$DCPCTL" --socket "$sock" status -j >/dev/null 2>&1; do
		kill -0 $daemon 2>/dev/null || fail "dcpd ended at once: $*"
		n=$((n + 1))
		[ $n -lt 600 ] || fail "dcpd is not ready: $*"
		sleep 0.1
	done
}

# stop WANT: SIGTERM; the exit code must be WANT.
stop() {
	kill -TERM "$daemon"
	rc=0
	wait "$daemon" || rc=$?
	daemon=
	[ $rc = "$1" ] || fail "dcpd ended with $rc, want $1"
}

ctl() {
	"$DCPCTL" --socket "$sock" "$@"
}

# Until a request is decoding (or whatever state is named).
until_request() {
	n=0
	until ctl requests -j 2>/dev/null |
	    grep -Eq "\"state\": \"${1:-decode}\""; do
		n=$((n + 1))
		[ $n -lt 300 ] || fail "no request came to be ${1:-decode}"
		sleep 0.05
	done
}

# json FILE PYTHON-EXPRESSION over `o`: true?
json() {
	python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)' "$1" "$2" ||
	    fail "not true: $2, of $(head -c 600 "$1")"
}
