"""The installed units under a real systemd, which is process 1 of namespaces
of its own: start by a client's connect, hardening with the CPU backend at work,
reload, watchdog, drain, restart (with a C program of the installed library
that lives on), a wrong configuration, an instance.

Needs root and a kernel that lets it make namespaces and mount a cgroup tree;
elsewhere test_systemd.py stands in with NOTIFY_SOCKET and LISTEN_FDS.
"""
import glob
import json
import os
import shutil
import select
import signal
import subprocess
import sys
import tempfile
import time

SRC = os.environ.get("srcdir", ".")
BUILD = os.path.abspath(os.environ.get("builddir", "."))
SYSTEMD = "/usr/lib/systemd/systemd"
PREFIX = "/usr/local"
FLAGS = ["--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--cgroup",
         "--kill-child"]

# A root of the machine's /usr, the staged installation, and little else. No
# journal and no udev: only targets are taken over. /usr is read-only: ldconfig
# would remove its links into /etc/alternatives, which is not there.
BOOT = r"""set -e
R=$1 STAGE=$2
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$R"
cd "$R"
mkdir usr etc proc sys dev run tmp var var/lib var/log root units
chmod 1777 tmp
mount --rbind /usr usr
mount -o remount,bind,ro usr
mount --bind "$STAGE%(prefix)s" usr/local
for l in bin sbin lib lib64; do ln -s usr/$l $l; done
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev
for n in null zero full random urandom tty; do
	: >dev/$n; mount --bind /dev/$n dev/$n
done
mkdir dev/shm
cp -a /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.conf* etc/
echo %(id)s >etc/machine-id
cp usr/lib/systemd/system/*.target units/
mount --bind units usr/lib/systemd/system
mkdir -p etc/systemd/system
printf '[Unit]\nDescription=test\n' >etc/systemd/system/test.target
chroot . ldconfig -X
chroot . systemd-sysusers %(prefix)s/lib/sysusers.d/dcpd.conf
chroot . setpriv --reuid 1 --clear-groups true
exec env -i container=test PATH=/usr/sbin:/usr/bin chroot . %(systemd)s \
    --system --unit=test.target --log-target=console --show-status=no
""" % {"prefix": PREFIX, "systemd": SYSTEMD, "id": "0123456789abcdef" * 2}


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def until(what, fn, seconds=90):
    end = time.monotonic() + seconds
    while True:
        got = fn()
        if got:
            return got
        assert time.monotonic() < end, "never: " + what
        time.sleep(0.1)


class Machine:
    def __init__(self, tmp):
        self.tmp = tmp
        self.stage, self.root = tmp + "/stage", tmp + "/root"
        os.mkdir(self.root)
        env = {k: v for k, v in os.environ.items()
               if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        # One at a time: libtool links again in the build folder.
        subprocess.run(["flock", BUILD + "/install.lock", "make", "-s", "-C",
                        BUILD, "install", "DESTDIR=" + self.stage], env=env,
                       check=True, stdout=subprocess.DEVNULL, timeout=600)
        if not os.path.exists(self.stage + PREFIX + "/sbin/dcpd"):
            skip("not configured for " + PREFIX)

    def boot(self):
        self.console = open(self.tmp + "/console", "w+")
        self.p = subprocess.Popen(
            ["unshare", *FLAGS, "sh", "-c", BOOT, "boot", self.root,
             self.stage], stdin=subprocess.DEVNULL, stdout=self.console,
            stderr=self.console, cwd="/")
        children = f"/proc/{self.p.pid}/task/{self.p.pid}/children"

        def init():
            if self.p.poll() is not None:
                skip("systemd cannot be process 1 here: " + self.said())
            pid = open(children).read().split()
            with open(f"/proc/{pid[0]}/comm" if pid else "/dev/null") as f:
                return f.read() == "systemd\n" and pid[0]
        self.pid = until("systemd starts", init)
        until("systemd answers", lambda: self.run(
            "systemctl", "is-active", "test.target").returncode == 0 or
            self.p.poll() is not None)
        if self.p.poll() is not None:
            skip("systemd cannot be process 1 here: " + self.said())
        self.ok("systemd-tmpfiles", "--create",
                PREFIX + "/lib/tmpfiles.d/dcpd.conf")
        for unit in ("dcpd.service", "dcpd@.service"):
            self.drop_in(unit, "log", "[Service]\n"
                         "StandardError=append:/var/log/dcpd.log\n")

    def said(self):
        self.console.seek(0)
        return " ".join(self.console.read().split())[-300:]

    def off(self):
        self.p.kill()           # --kill-child: systemd, and all with it
        self.p.wait()

    def run(self, *args, user=None, timeout=120):
        who = [] if user is None else ["setpriv", *user]
        return subprocess.run(
            ["nsenter", "-t", self.pid, "-m", "-u", "-i", "-n", "-p", "-C",
             "-r", "-w", "--", *who, *args], capture_output=True, text=True,
            timeout=timeout, cwd="/")

    def background(self, *args, user=None, stdout=subprocess.PIPE):
        who = [] if user is None else ["setpriv", *user]
        return subprocess.Popen(
            ["nsenter", "-t", self.pid, "-m", "-u", "-i", "-n", "-p", "-C",
             "-r", "-w", "--", *who, *args], stdout=stdout,
            stderr=subprocess.PIPE, text=True, cwd="/")

    def compile(self, source, inside):
        """A program of an installed header and library, by pkg-config."""
        pc = self.stage + PREFIX + "/lib/pkgconfig"
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "libdcpclient"],
            env=dict(os.environ, PKG_CONFIG_PATH=pc,
                     PKG_CONFIG_SYSROOT_DIR=self.stage),
            check=True, capture_output=True, text=True).stdout.split()
        copy = os.path.join(self.tmp, os.path.basename(source))
        shutil.copy(source, copy)
        subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror",
                        "-o", self.path(inside), copy, *flags], check=True,
                       cwd=self.tmp)

    def ok(self, *args, **kw):
        r = self.run(*args, **kw)
        assert r.returncode == 0, (r, self.log())
        return r.stdout

    def path(self, inside):
        return f"/proc/{self.pid}/root{inside}"

    def write(self, inside, text):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w") as f:
            f.write(text)

    def conf(self, name="dcpd", **keys):
        self.write(f"{PREFIX}/etc/dcpd/{name}.conf", json.dumps(
            {k.replace("_", "-"): v for k, v in keys.items()}))

    def drop_in(self, unit, name, text):
        self.write(f"/run/systemd/system/{unit}.d/{name}.conf", text)
        self.ok("systemctl", "daemon-reload")

    def log(self, n=15):
        try:
            with open(self.path("/var/log/dcpd.log"), errors="replace") as f:
                return "".join(f.readlines()[-n:])
        except OSError:
            return ""

    def show(self, prop, unit="dcpd.service"):
        return self.ok("systemctl", "show", "-P", prop, unit).strip()

    def main_pid(self):
        """As seen from outside."""
        inner = self.show("MainPID")
        for d in glob.glob("/proc/[0-9]*/status"):
            try:
                with open(d) as f:
                    s = dict(x.rstrip("\n").split(":\t", 1) for x in f
                             if ":\t" in x)
            except OSError:
                continue
            if s["Name"] == "dcpd" and s["NSpid"].split()[-1] == inner and \
                    os.stat(os.path.dirname(d) + "/ns/pid").st_ino == \
                    os.stat(f"/proc/{self.pid}/ns/pid").st_ino:
                return int(d.split("/")[2]), s
        raise AssertionError("no dcpd with pid " + inner)

    def ctl(self, *args, **kw):
        return self.run("dcpctl", *args, **kw)

    def generate(self, n, **kw):
        return self.ctl("generate", "--tokens", "1,2,3", "--ignore-eos",
                        "--max-tokens", str(n), "-j", **kw)


NULL = {"engine": "null", "null_step_us": 2000}
MEMBER = ["--reuid", "nobody", "--regid", "dcp", "--clear-groups"]
STRANGER = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]


def connecting_starts_it_hardened(m):
    m.conf(model=PREFIX + "/share/dcpd/models/dcp-tiny", tp=4, dcp_size=4,
           kv_bytes_per_rank="4MiB", max_context=1024)
    m.ok("systemctl", "start", "dcpd.socket", "dcpd-admin.socket")
    assert m.show("ActiveState") == "inactive"
    for name, mode, owner in (("", "660", "dcpd:dcp"),
                              (".admin", "600", "dcpd:dcpd")):
        assert m.ok("stat", "-c", "%a %U:%G", "/run/dcpd/dcpd.sock" + name) \
            == f"{mode} {owner}\n"
    assert m.generate(2, user=STRANGER).returncode != 0
    assert m.show("ActiveState") == "inactive"
    # A member of the group, who waits while the model loads.
    r = m.generate(8, user=MEMBER)
    assert r.returncode == 0, (r, m.log())
    assert len(json.loads(r.stdout)["tokens"]) == 8
    assert m.show("ActiveState") == "active"
    assert m.show("StatusText") == "serving"
    _, s = m.main_pid()
    assert s["NoNewPrivs"] == "1" and s["Seccomp"] == "2", s
    assert int(s["CapEff"], 16) == int(s["CapBnd"], 16) == 0, s
    assert s["Uid"].split()[0] == m.ok("id", "-u", "dcpd").strip()
    assert "cpu" == json.loads(m.ok("dcpctl", "status", "-j"))["engine"]
    assert m.ctl("check").returncode == 0


def reload_says_what_it_did(m):
    m.conf(**NULL, queue_max=50)
    m.ok("systemctl", "restart", "dcpd")
    m.conf(**NULL, queue_max=60)
    m.ok("systemctl", "reload", "dcpd")
    config = json.loads(m.ok("dcpctl", "config", "-j"))
    assert config["queue-max"] == 60
    m.conf(**NULL, queue_max=0)
    assert m.run("systemctl", "reload", "dcpd").returncode != 0
    assert "nothing changed" in m.log()
    refused = m.log(1000).count("nothing changed")
    m.ok("systemctl", "kill", "-s", "HUP", "dcpd")
    until("the file is read", lambda:
          m.log(1000).count("nothing changed") > refused)
    until("it is active", lambda: m.show("ActiveState") == "active")
    assert m.show("NRestarts") == "0"
    config = json.loads(m.ok("dcpctl", "config", "-j"))
    assert config["queue-max"] == 60
    m.conf(**NULL)


def watchdog_ends_a_stopped_daemon(m):
    m.drop_in("dcpd.service", "dog", "[Service]\nWatchdogSec=8\n")
    m.ok("systemctl", "restart", "dcpd")

    def pinged():
        """When it last said that it lives, in s."""
        return int(m.show("WatchdogTimestampMonotonic")) / 1e6
    began = pinged()
    until("it lives longer than the watchdog waits",
          lambda: pinged() - began > 10)
    assert m.show("NRestarts") == "0", "the watchdog bit a sound daemon"
    pid, _ = m.main_pid()
    os.kill(pid, signal.SIGSTOP)
    until("a restart", lambda: m.show("NRestarts") == "1")
    until("it is active", lambda: m.show("ActiveState") == "active")
    assert m.main_pid()[0] != pid
    # It was asked to abort, and wrote where it was.
    report = glob.glob(m.path("/var/lib/dcpd/crash-*.txt"))
    assert len(report) == 1, report
    with open(report[0]) as f:
        assert "why: signal 6" in f.read()
    assert m.generate(3).returncode == 0
    # What was killed is started again, too.
    os.kill(m.main_pid()[0], signal.SIGKILL)
    until("another restart", lambda: m.show("NRestarts") == "2")
    until("it is active", lambda: m.show("ActiveState") == "active")
    assert m.generate(3).returncode == 0


def stop_drains(m):
    p = m.background("dcpctl", "generate", "--tokens", "1", "--max-tokens",
                     "2000", "-j")
    until("it runs", lambda: json.loads(m.ok("dcpctl", "status", "-j"))
          ["running"] == 1)
    m.ok("systemctl", "stop", "dcpd")
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    assert len(json.loads(out)["tokens"]) == 2000
    assert m.show("Result") == "success"
    assert m.show("ExecMainStatus") == "0"
    # The sockets are systemd's and stay: the next client starts it again.
    assert m.generate(3).returncode == 0


def a_restart_keeps_who_connects_waiting(m):
    m.ok("systemctl", "restart", "--no-block", "dcpd")
    for _ in range(3):
        r = m.generate(3)
        # The daemon that ends may still have taken it.
        assert r.returncode == 0 or "stopping" in r.stderr or \
            "draining" in r.stderr or "gone" in r.stderr or \
            "closed the connection" in r.stderr, r
    assert m.generate(3).returncode == 0


def a_program_outlives_restarts(m):
    """Two restarts, and a daemon that was killed."""
    m.ok("systemctl", "reset-failed", "dcpd.service", "dcpd.socket")
    m.ok("systemctl", "restart", "dcpd")
    m.compile(os.path.join(SRC, "libdcpclient/examples/reconnect.c"),
              "/usr/local/reconnect")
    path = os.path.join(m.tmp, "seen")
    with open(path, "w") as seen:
        p = m.background("/usr/local/reconnect", "1000000", user=MEMBER,
                         stdout=seen)

        def times(what):
            assert p.poll() is None, "it gave up: " + p.stderr.read()
            # Opened anew: the program's own descriptor has its own offset.
            with open(path) as f:
                return [float(t) for t, word in
                        (x.split() for x in f if x.endswith("\n"))
                        if word == what]
        ms = []
        for how in "restart", "restart", "kill":
            # Five starts within 10 s are systemd's limit.
            m.ok("systemctl", "reset-failed", "dcpd.service", "dcpd.socket")
            lost, before = len(times("lost")), len(times("answered"))
            until("it is answered",
                  lambda: len(times("answered")) > before + 2)
            end = os.pidfd_open(m.main_pid()[0])
            if how == "restart":
                m.ok("systemctl", "restart", "--no-block", "dcpd")
            else:
                signal.pidfd_send_signal(end, signal.SIGKILL)
            assert select.select([end], [], [], 60)[0], "it does not end"
            ended = time.time()
            os.close(end)
            until("it sees the end", lambda: len(times("lost")) > lost)
            ms.append((times("lost")[lost] - ended) * 1e3)
            before = len(times("answered"))
            until("it goes on", lambda: len(times("answered")) > before + 2)
            assert len(times("connected")) == len(times("lost")) + 1
        # nsenter's child is the program.
        with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        p.wait()
    print("  -EPIPE seen after the end of the process: " +
          ", ".join(f"{x:.0f} ms" for x in ms))
    # On two processes' clocks, on a machine that may be busy.
    assert max(ms) < 5000, ms


def a_wrong_configuration_is_not_tried_again(m):
    before = m.show("NRestarts")
    m.conf(**NULL, dcp_size=3)
    assert m.run("systemctl", "restart", "dcpd").returncode != 0
    # Not "activating", as while a restart is due.
    assert m.show("ActiveState") == "failed"
    assert m.show("ExecMainStatus") == "78"
    assert m.show("NRestarts") in ("0", before)
    assert "--dcp-size" in m.log(1), m.log(1)
    m.ok("systemctl", "stop", "dcpd.socket", "dcpd-admin.socket")


def an_instance_is_a_unit(m):
    m.conf("two", **NULL, tp=2, dcp_size=2)
    m.ok("systemctl", "start", "dcpd@two")
    assert m.ok("stat", "-c", "%a %U:%G", "/run/dcpd/two.sock") == \
        "660 dcpd:dcp\n"
    r = m.run("dcpctl", "--socket", "/run/dcpd/two.sock", "generate",
              "--tokens", "1", "--max-tokens", "2", "-j", user=MEMBER)
    assert r.returncode == 0, (r, m.log())
    m.ok("systemctl", "reload", "dcpd@two")
    m.ok("systemctl", "stop", "dcpd@two")
    assert m.show("Result", "dcpd@two.service") == "success"


CASES = [connecting_starts_it_hardened, reload_says_what_it_did,
         watchdog_ends_a_stopped_daemon, stop_drains,
         a_restart_keeps_who_connects_waiting, a_program_outlives_restarts,
         a_wrong_configuration_is_not_tried_again, an_instance_is_a_unit]


def main():
    if os.geteuid() != 0:
        skip("not root")
    if not os.path.exists(SYSTEMD) or not shutil.which("nsenter"):
        skip("no systemd here")
    r = subprocess.run(["unshare", *FLAGS, "true"], capture_output=True,
                       text=True)
    if r.returncode != 0:
        skip("no namespaces: " + r.stderr.strip())
    with tempfile.TemporaryDirectory(prefix="dcpd-test.") as tmp:
        m = Machine(tmp)
        m.boot()
        try:
            for case in CASES:
                case(m)
                print("ok:", case.__name__, flush=True)
        except BaseException:
            sys.stderr.write(m.said() + "\n" + m.log(40))
            raise
        finally:
            m.off()


main()
