# What tools/quickstart and tools/check share: packages, build, a daemon for a
# while. Sourced by them, in the project's root.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

BUILD_PACKAGES="gcc make autoconf automake libtool pkg-config libc6-dev \
libjansson-dev libpcre2-dev libsystemd-dev libevent-dev check"
PACKAGE_PACKAGES="debhelper lintian g++ python3 python3-numpy xz-utils \
groff-base"
ANALYSIS_PACKAGES="cppcheck clang-tidy"

is_installed() {
	dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null |
	    grep -qx installed && return 0
	# pkg-config may be pkgconf, which stands in for it.
	[ "$1" = pkg-config ] && command -v pkg-config >/dev/null
}

# Installs those of the named packages that are missing, if any.
need_packages() {
	command -v dpkg-query >/dev/null || {
		say "no dpkg here: going on as if these were installed: $*"
		return 0
	}
	missing=
	for p in "$@"; do
		is_installed "$p" || missing="$missing $p"
	done
	[ -z "$missing" ] && return 0
	say "installing:$missing"
	root=
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || die "these packages are missing" \
		    "and there is no sudo; as root: apt-get install$missing"
		root=sudo
	fi
	# Its words are many; one of them is said, where it fails.
	aptlog=$(mktemp "${TMPDIR:-/tmp}/apt.XXXXXX")
	# shellcheck disable=SC2086
	apt_get install --no-install-recommends $missing || {
		# No package lists yet on a fresh machine.
		apt_get update || die "missing:$missing; apt-get reaches no" \
		    "package lists: is there a network? ($aptlog)"
		# shellcheck disable=SC2086
		apt_get install --no-install-recommends $missing ||
		    die "missing:$missing; apt-get install:" \
		    "$(sed -n 's/^E: //p' "$aptlog" | tail -n 1) ($aptlog)"
	}
	rm -f "$aptlog"
}

# Patient enough for a slow mirror, not for a network that is not there.
apt_get() {
	$root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq \
	    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
	    -o APT::Update::Error-Mode=any "$@" >>"$aptlog" 2>&1
}

# logged LOG COMMAND...: quiet unless it fails.
logged() {
	log=$1
	shift
	"$@" >>"$log" 2>&1 && return 0
	tail -n 40 "$log" >&2
	say "failed: $* (all of it: $log)"
	return 1
}

# configured DIR FLAGS...: autoreconf and configure where that is due.
configured() {
	dir=$1
	shift
	mkdir -p "$dir"
	: >"$dir/setup.log"
	if [ ! -x configure ] || [ configure.ac -nt configure ] ||
	    [ Makefile.am -nt Makefile.in ] || [ ! -e Makefile.in ]; then
		logged "$dir/setup.log" autoreconf -fi || return 1
	fi
	# The same flags as last time: make does the rest.
	[ -f "$dir/Makefile" ] && [ "$(cat "$dir/flags" 2>/dev/null)" = "$*" ] &&
	    return 0
	(cd "$dir" && logged setup.log ../configure "$@") || return 1
	echo "$*" >"$dir/flags"
}

built() {
	logged "$1/setup.log" make -C "$1" -j"$(nproc)" all
}

# start_daemon DCPD DCPCTL FLAGS...: sets $socket and $daemon, waits for ready.
start_daemon() {
	dcpd=$1 dcpctl=$2
	shift 2
	rundir=$(mktemp -d "${TMPDIR:-/tmp}/dcpd.XXXXXX")
	socket=$rundir/dcpd.sock
	"$dcpd" --socket "$socket" "$@" 2>"$rundir/log" &
	daemon=$!
	tries=0
	until "$dcpctl" --socket "$socket" status -j >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || {
			cat "$rundir/log" >&2
			say "dcpd ended"
			return 1
		}
		tries=$((tries + 1))
		[ $tries -lt 600 ] || {
			cat "$rundir/log" >&2
			say "dcpd is not ready after a minute"
			return 1
		}
		sleep 0.1
	done
}

# Ends it as systemd would; its exit status.
stop_daemon() {
	[ -n "${daemon:-}" ] || return 0
	kill -TERM "$daemon" 2>/dev/null || :
	status=0
	wait "$daemon" || status=$?
	daemon=
	rm -rf "$rundir"
	return $status
}
