#!/bin/sh
# Every page of doc/ is in the index, and every link leads to a file.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

for page in "$srcdir"/doc/*.md; do
	name=$(basename "$page")
	[ "$name" = index.md ] || grep -qw "$name" "$srcdir/doc/index.md" ||
	    fail "doc/index.md does not name $name"
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
echo ok
