#!/bin/sh
# Installs into a stage, then builds a C and a C++ program against it with
# pkg-config alone, runs the two examples against a server, and compares the
# library's ABI with the recorded one. Run in the build folder.
set -eu
srcdir=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
build=$(pwd)
stage=$(mktemp -d)
server= program=
end() {
	[ -z "$server" ] || kill "$server" 2>/dev/null || :
	[ -z "$program" ] || kill "$program" 2>/dev/null || :
	rm -rf "$stage"
}
trap end EXIT
fail() { echo "FAIL: $*"; exit 1; }

# A sanitized library cannot be loaded by a plain program.
if nm -D .libs/libdcpclient.so | grep -q '__asan_init\|__tsan_init'; then
	echo "SKIP: library built with a sanitizer"
	exit 77
fi

unset MAKEFLAGS MFLAGS MAKELEVEL
# One at a time: libtool links again in the build folder.
flock install.lock make -s install DESTDIR="$stage" >/dev/null 2>"$stage/err" ||
	{ cat "$stage/err"; fail "make install"; }
pc=$(find "$stage" -name libdcpclient.pc)
[ -n "$pc" ] || fail "libdcpclient.pc is not installed"
export PKG_CONFIG_SYSROOT_DIR="$stage" PKG_CONFIG_PATH="${pc%/*}"
cflags=$(pkg-config --cflags libdcpclient)
libs=$(pkg-config --libs libdcpclient)
libdir=$(dirname "$(find "$stage" -name libdcpclient.so)")
export LD_LIBRARY_PATH="$libdir"

cd "$stage"
echo "#include <dcpclient.h>" >alone.c
gcc -std=c11 -pedantic -Wall -Wextra -Werror $cflags -fsyntax-only alone.c ||
	fail "dcpclient.h alone, C"
g++ -std=c++11 -pedantic -Wall -Wextra -Werror $cflags -fsyntax-only \
	-x c++ alone.c || fail "dcpclient.h alone, C++"
echo "#include <dcp_plugin.h>" >plugin.c
gcc -std=c11 -pedantic -Wall -Wextra -Werror $cflags -fsyntax-only plugin.c ||
	fail "dcp_plugin.h alone, C"
g++ -std=c++11 -pedantic -Wall -Wextra -Werror $cflags -fsyntax-only \
	-x c++ plugin.c || fail "dcp_plugin.h alone, C++"
echo '#include "libdcpclient/dcp_ring.h"' >ring.c
gcc -std=c11 -pedantic -Wall -Wextra -Werror -I"$srcdir" -fsyntax-only \
	ring.c || fail "dcp_ring.h alone, C"
g++ -std=c++11 -pedantic -Wall -Wextra -Werror -I"$srcdir" -fsyntax-only \
	-x c++ ring.c || fail "dcp_ring.h alone, C++"

cat >user.cc <<'END'
#include <cstdio>
#include <cstring>
#include <dcpclient.h>
int main()
{
	struct dcp *d;
	char *json;
	if (dcp_connect(nullptr, 5000, &d) < 0)
		return std::puts(dcp_error_text()), 1;
	if (dcp_server_info(d, &json) < 0)
		return 1;
	std::puts(json);
	std::puts(dcp_version());
	dcp_close(d);
}
END
g++ -std=c++11 -Wall -Wextra -Werror $cflags user.cc $libs -o user ||
	fail "a C++ program"
for ex in generate poll_many reconnect; do
	gcc -std=c11 -Wall -Wextra -Werror $cflags \
		"$srcdir/libdcpclient/examples/$ex.c" $libs -o $ex ||
		fail "example $ex"
done

export DCPD_SOCKET="$stage/sock"
./generate x >/dev/null 2>err && fail "generate without a server succeeded"
grep -q "is dcpd running" err || fail "no server: $(cat err)"
"$build/tests/integration/ring_test_server" "$DCPD_SOCKET" >out 2>&1 &
server=$!
i=0
until grep -q ready out; do
	i=$((i + 1))
	[ $i -lt 200 ] || fail "the server does not start: $(cat out)"
	sleep 0.05
done
out=$(timeout 20 ./user) || fail "user: $out"
case $out in
'{"model":"counter"}'*) ;;
*) fail "user printed $out" ;;
esac
want="$(seq -s ' ' 0 63) "
out=$(timeout 20 ./generate x) || fail "generate"
[ "$out" = "$want" ] || fail "generate printed $out"
out=$(timeout 20 ./poll_many one two three | sort | uniq -c | sort -n |
	sed 's/^ *//') || fail "poll_many"
want="1 one
1 three
1 two
3   $(seq -s ' ' 0 31) "
[ "$out" = "$want" ] || fail "poll_many printed $out"

# A program outside the tree outlives the daemon: killed three times, ended
# twice. It waits without a timeout and no other daemon starts before it has
# said that it lost this one: the kill itself has told it. How soon is for
# t_ring_kill to bound, and only printed here.
start_daemon() {
	"$daemon" --engine null --null-step-us 5000 --socket "$DCPD_SOCKET" \
		>>daemon.log 2>&1 &
	server=$!
}
lines() { grep -c "$1" seen || :; }
# wait_line WORD N: until the program has said WORD N times.
wait_line() {
	i=0
	until [ "$(lines "$1")" -ge "$2" ]; do
		i=$((i + 1))
		[ $i -lt 600 ] || fail "no $1 number $2: $(cat seen daemon.log)"
		sleep 0.05
	done
}
kill "$server"
wait "$server" || :
daemon=$(find "$stage" -name dcpd -type f -perm -u+x)
export DCPD_SOCKET="$stage/dcpd.sock"
start_daemon
./reconnect 1000 >seen 2>&1 &
program=$!
best=100000
n=0
while [ $n -lt 5 ]; do
	wait_line answered $(($(lines answered) + 2))
	signal=KILL
	[ $n -lt 3 ] || signal=TERM
	ended=$(date +%s%3N)
	kill -$signal "$server"
	wait "$server" || :
	n=$((n + 1))
	wait_line lost $n
	start_daemon
	wait_line connected $((n + 1))
	[ $signal = KILL ] || continue
	saw=$(grep lost seen | sed -n "${n}s/\\([0-9]*\\)\\.\\([0-9]*\\) .*/\\1\\2/p")
	[ $((saw - ended)) -ge $best ] || best=$((saw - ended))
done
wait_line answered $(($(lines answered) + 2))
kill "$program"
echo "five ends of the daemon outlived; a kill was seen after $best ms at best"

# Each function of the header has a page of its own.
for f in $(sed -n 's/.*\b\(dcp_[a-z_]*\)(.*/\1/p' \
	"$srcdir/libdcpclient/dcpclient.h" | sort -u); do
	nm -D "$libdir/libdcpclient.so" | grep -q " T $f@@DCPCLIENT_1.0" ||
		continue
	find "$stage" -name "$f.3*" | grep -q . || fail "no page $f(3)"
done
n=$(nm -D --defined-only "$libdir/libdcpclient.so" | grep -c ' T ')
[ "$n" -eq 10 ] || fail "the library exports $n functions, not 10"

if command -v abidiff >/dev/null; then
	abidiff --no-added-syms "$srcdir/libdcpclient/libdcpclient.abi" \
		"$build/.libs/libdcpclient.so" || fail "the ABI changed; if \
compatibly, record it: see libdcpclient/local.mk"
else
	echo "abidiff is not installed: ABI not compared"
fi
echo "PASS"
