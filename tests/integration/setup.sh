#!/bin/sh
# tools/setup.sh where packages are missing and apt-get cannot get them: one
# line that says what and why, and the end.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

mkdir "$work/bin"
stub() {
	printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
	chmod +x "$work/bin/$1"
}
stub dpkg-query 'exit 1'
stub sudo 'exec "$@"'
stub apt-get 'echo "W: Failed to fetch a"; echo "W: Failed to fetch b"
echo "E: Unable to locate package some-package" >&2
case "$*" in *update*) exit ${UPDATE:-100} ;; *) exit 100 ;; esac'

# ends WORDS...: what is said besides which packages are installed
ends() {
	rc=0
	PATH=$work/bin:$PATH TMPDIR=$work sh -c '. "$1/tools/setup.sh"
	    need_packages some-package' sh "${srcdir:-.}" >"$work/o" 2>&1 ||
	    rc=$?
	[ $rc = 1 ] || fail "exit code $rc: $(cat "$work/o")"
	[ "$(wc -l <"$work/o")" = 2 ] || fail "not one line: $(cat "$work/o")"
	for word; do
		grep -q "^error: missing: some-package.*$word" "$work/o" ||
		    fail "no \"$word\": $(cat "$work/o")"
	done
}
ends "is there a network?"
UPDATE=0
export UPDATE
ends "Unable to locate"
echo "ok"
