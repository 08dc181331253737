#!/bin/sh
# The units are such that systemd has nothing to say about them, and expose as
# little as was promised; `make install` puts everything where it belongs.
set -eu
. "${srcdir:-.}/tests/integration/lib.sh"
command -v systemd-analyze >/dev/null ||
    { echo "SKIP: no systemd-analyze here"; exit 77; }

stage=$work/stage
unset MAKEFLAGS MFLAGS MAKELEVEL
# One at a time: libtool links again in the build folder.
flock install.lock make -s install DESTDIR="$stage" >/dev/null \
    2>"$work/log" || fail "install"
dir=$(dirname "$(find "$stage" -name dcpd.service)")
[ -n "$dir" ] || fail "no dcpd.service was installed"
for f in dcpd.service dcpd@.service dcpd.socket dcpd-admin.socket \
    dcpd-http.socket; do
	[ -f "$dir/$f" ] || fail "$f was not installed"
done
! grep -n '@[a-z]*@' "$dir"/* || fail "a place was not filled in"
grep -q '^u dcpd ' "$(find "$stage" -path '*/sysusers.d/dcpd.conf')" ||
    fail "sysusers.d"
grep -q '^d /run/dcpd ' "$(find "$stage" -path '*/tmpfiles.d/dcpd.conf')" ||
    fail "tmpfiles.d"

# As if installed: the programs at a path that this machine has.
mkdir "$work/units"
cp "$dir"/* "$work/units"
mv "$work/units/dcpd@.service" "$work/units/dcpd@one.service"
sed -i -e "s|^\(Exec[A-Za-z]*=\)[^ ]*/dcpd |\1$DCPD |" \
    -e "s|^\(Exec[A-Za-z]*=\)[^ ]*/dcpctl |\1$DCPCTL |" "$work/units"/*
SYSTEMD_UNIT_PATH=$work/units: systemd-analyze verify --man=no \
    "$work/units"/* >"$work/log" 2>&1 || fail "verify"
# Other units of this machine are not our concern.
! grep "$work/units\|dcpd" "$work/log" || fail "verify has something to say"

for unit in dcpd.service dcpd@one.service; do
	systemd-analyze security --no-pager --offline=true --threshold=17 \
	    "$work/units/$unit" >"$work/security" ||
	    fail "$unit: $(tail -n 1 "$work/security")"
	tail -n 1 "$work/security"
done
echo "all ok"
