#!/bin/sh
# Every page of doc/ is in the index and installed, every link leads to a file,
# and every test that doc/cases.md names is there.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

for page in "$srcdir"/doc/*.md; do
	name=$(basename "$page")
	[ "$name" = index.md ] || grep -qw "$name" "$srcdir/doc/index.md" ||
	    fail "doc/index.md does not name $name"
	grep -qw "doc/$name" "$srcdir/Makefile.am" ||
	    fail "Makefile.am does not install doc/$name"
done
for page in "$srcdir"/*.md "$srcdir"/doc/*.md; do
	dir=$(dirname "$page")
	grep -o '](\([^)#]*\)' "$page" | sed 's/^](//' >"$work/links" || :
	while read -r link; do
		case $link in
		http*) continue ;;
		esac
		[ -e "$dir/$link" ] || fail "$page: no $link"
	done <"$work/links"
done
find "$srcdir/tests" \( -name '*.c' -o -name '*.py' -o -name '*.sh' \) \
    -exec cat {} + >"$work/tests"
n=0
for name in $(grep -o '`[a-z0-9_]*`' "$srcdir/doc/cases.md" | tr -d '`'); do
	case $name in
	index_topk) continue ;;
	esac
	grep -q "\b\(test_\)\?$name\b" "$work/tests" ||
	    fail "doc/cases.md: no test $name"
	n=$((n + 1))
done
[ $n -gt 60 ] || fail "only $n tests are named in doc/cases.md"
echo "ok, $n tests named"
