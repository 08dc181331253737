#!/bin/sh
# Every command of the README, of doc/http.md's build tree and of the manual
# pages' examples runs as printed. (Where it says /tmp/dcpd.sock or a model,
# this test's own is put in its place; what installs or builds is tools/check's
# part.)
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"

# Lines as a shell would get them, with the programs and paths of this build.
here() {
	sed -e "s|/tmp/dcpd.sock|$sock|" -e "s|\.\./models|$srcdir/models|" \
	    -e "s|models/dcp-tiny|$TINY|;s|$srcdir/$TINY|$TINY|" \
	    -e "s|GLM-5/config.json|$TINY/config.json|" \
	    -e "s|DIR/config.json|$TINY/config.json|" -e "s|--port 8000|--port 0|" \
	    -e "s|^dcpctl/dcpctl |$DCPCTL |;s|^dcpctl |$DCPCTL |" \
	    -e "s|^dcpd/dcpd |$DCPD |;s|^dcpd |$DCPD |"
}
examples() {	# the lines of a page's EXAMPLES
	sed -n '/^\.SH EXAMPLES/,/^\.SH SEE/p' "$1" | grep -E '^dcp(d|ctl)' |
	    sed 's/\\-/-/g'
}

{
	grep -hE '^ {4}dcp(d/dcpd|ctl/dcpctl) ' "$srcdir/README.md" \
	    "$srcdir/doc/http.md" | sed 's/^ *//'
	examples "$srcdir/doc/man/dcpd.8"
	examples "$srcdir/doc/man/dcpctl.1"
} | here >"$work/commands"
# None is left to the default socket: a clone has no folder for that.
! grep -hE '^ {4}.*dcpd/dcpd ' "$srcdir/README.md" "$srcdir/doc/http.md" |
    grep -vE -- '--plan|--socket' || fail "a command without --socket"
count=$(wc -l <"$work/commands")
[ "$count" -ge 9 ] || fail "only $count commands found"

DCPD_SOCKET=$sock
export DCPD_SOCKET DCPD
while read -r command; do
	echo "$command"
	case $command in
	"$DCPD "*--plan*)
		eval "$command" >"$work/out" 2>&1 ||
		    fail "$command: $(tail -n 3 "$work/out")" ;;
	"$DCPD "*)
		[ -z "$daemon" ] || stop 0
		# A line of its own; the flags alone go to start.
		eval "set -- ${command#"$DCPD "}"
		start "$@" ;;
	*)
		eval "$command" >"$work/out" 2>&1 </dev/null ||
		    fail "$command: $(tail -n 3 "$work/out")" ;;
	esac
done <"$work/commands"
stop 0
echo "$count commands ran"
