#!/bin/sh
# Manual pages have no errors of form, and dcpd(8) has the flags that dcpd has.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

sh "$srcdir/tools/man-flags" "$DCPD" --check || fail "doc/man/dcpd.8"
command -v groff >/dev/null || { echo "no groff"; exit 77; }
n=0
for page in $(find "$srcdir/doc/man" "$srcdir/libdcpclient" -name '*.[1-8]'); do
	groff -man -ww -z -Tutf8 "$page" >"$work/log" 2>&1 || fail "$page"
	[ ! -s "$work/log" ] || fail "$page"
	grep -q '^\.SH NAME' "$page" || grep -q '^\.so ' "$page" ||
	    fail "$page: no NAME"
	n=$((n + 1))
done
[ $n -ge 2 ] || fail "only $n pages found"
echo "$n pages ok"
