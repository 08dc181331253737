#!/bin/sh
# Every page of doc/ is in the index and installed, every link leads to a file,
# here and where it is installed, and every test that doc/cases.md names is
# there. Run in the build folder.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

for page in "$srcdir"/doc/*.md; do
	name=$(basename "$page")
	[ "$name" = index.md ] || grep -qw "$name" "$srcdir/doc/index.md" ||
	    fail "doc/index.md does not name $name"
	grep -qw "doc/$name" "$srcdir/Makefile.am" ||
	    fail "Makefile.am does not install doc/$name"
done
links_lead() {	# PAGE..: each link of theirs
	for page; do
		dir=$(dirname "$page")
		grep -o '](\([^)#]*\)' "$page" | sed 's/^](//' >"$work/links" || :
		while read -r link; do
			case $link in
			http*) continue ;;
			esac
			[ -e "$dir/$link" ] || fail "$page: no $link"
		done <"$work/links"
	done
}
links_lead "$srcdir"/*.md "$srcdir"/doc/*.md
# What goes into the documentation's folder, and nothing else.
unset MAKEFLAGS MFLAGS MAKELEVEL
targets=$(sed -n 's/^\(install-dist_\(doc[a-z]*\|example\)DATA\):.*/\1/p' \
    Makefile)
[ -n "$targets" ] || fail "Makefile installs no documentation"
# shellcheck disable=SC2086
flock install.lock make -s DESTDIR="$work/stage" $targets \
    >/dev/null 2>"$work/log" || fail "make install"
pages=$(find "$work/stage" -name '*.md')
[ "$(echo "$pages" | wc -l)" -gt 20 ] || fail "installed are only $pages"
links_lead $pages
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
