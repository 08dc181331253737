#!/bin/bash
# Bash completes commands, subcommands, flags and their values, as the
# programs' own help names them.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0"
set -u
. "${srcdir:-.}/doc/completion/dcpctl"
PATH=$(dirname "$DCPCTL"):$(dirname "$DCPD"):$PATH
fail() { echo "FAIL: $*"; exit 1; }

# completes WORD.. : what is offered for the last of the words
completes() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	"_$1" "$1"
	printf '%s\n' "${COMPREPLY[@]}"
}
offers() {
	want=$1
	shift
	completes "$@" | grep -qxF -- "$want" ||
	    fail "'$*' does not offer $want: $(completes "$@" | tr '\n' ' ')"
}
only() {
	want=$1
	shift
	[ "$(completes "$@")" = "$want" ] ||
	    fail "'$*' offers $(completes "$@" | tr '\n' ' '), not $want"
}

for c in status requests top generate chat cancel drain bench cache config; do
	offers $c dcpctl ''
done
[ "$(completes dcpctl '' | wc -l)" -eq \
    "$("$DCPCTL" help | sed -n '/^options/q; /^  [a-z]/p' | wc -l)" ] ||
    fail "not every command is offered"
only generate dcpctl gen
only drop dcpctl cache dr
offers ipc dcpctl --socket /x bench ''
offers trace dcpctl bench ''
offers --max-tokens dcpctl generate --m
offers --streams dcpctl bench decode --
only --cp-strategy dcpd --cp-st
offers cuda dcpd --device ''
offers bf16 dcpd --model x --kv-cache-dtype b
echo "PASS"
