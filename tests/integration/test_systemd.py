"""What systemd asks of a daemon: READY=1 only when it serves, STATUS and more
time while it loads, STOPPING=1 at the end; listening sockets by name, on which
clients may wait while the model loads.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("builddir", ".")
DCPD = os.environ.get("DCPD", BUILD + "/dcpd/dcpd")
DCPCTL = os.environ.get("DCPCTL", BUILD + "/dcpctl/dcpctl")


started = []    # ended whatever happens


def listener(path, kind):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(path)
    s.listen(8)
    return s


def start(args, notify, log, fds=(), names=()):
    """dcpd with fds as 3, 4, ... and LISTEN_* set for its own process id."""
    env = dict(os.environ, NOTIFY_SOCKET=notify)
    script = 'exec "$0" "$@"'
    if fds:
        env["LISTEN_FDS"] = str(len(fds))
        env["LISTEN_FDNAMES"] = ":".join(names)
        script = 'LISTEN_PID=$$; export LISTEN_PID; ' + script
        # Out of the way first: 3 may be one of them.
        high = [os.dup2(f.fileno(), 100 + i) for i, f in enumerate(fds)]
        for i, f in enumerate(high):
            script = f"exec {3 + i}<&{f} {f}<&-; " + script
        keep = high
    else:
        keep = []
    p = subprocess.Popen(["bash", "-c", script, DCPD, *args], env=env,
                         stderr=log, pass_fds=keep)
    started.append(p)
    return p


def until(sock, want, seconds=60):
    """Messages up to the one with `want` in it."""
    seen = []
    sock.settimeout(seconds)
    while not any(want in m for m in seen):
        seen.append(sock.recv(4096).decode())
    return seen


def ctl(path, *args, **kw):
    return subprocess.run([DCPCTL, "--socket", path, *args],
                          capture_output=True, text=True, timeout=60, **kw)


def notified(tmp, log):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(tmp + "/notify")
    path = tmp + "/s"
    t = time.time()
    p = start(["--engine", "null", "--null-step-us", "1000000", "--socket",
               path], tmp + "/notify", log)
    seen = until(notify, "READY=1")
    # The self-test is a step of one second: not ready before it is done.
    assert time.time() - t >= 1, "READY=1 before the self-test"
    assert any("STATUS=loading: self-test" in m and "EXTEND_TIMEOUT_USEC=" in m
               for m in seen), seen
    assert ctl(path, "status").returncode == 0
    p.send_signal(signal.SIGTERM)
    until(notify, "STOPPING=1")
    assert p.wait(20) == 0


def activated(tmp, log):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(tmp + "/notify2")
    path = tmp + "/a"
    main = listener(path, socket.SOCK_SEQPACKET)
    admin = listener(path + ".admin", socket.SOCK_STREAM)
    # Given in the other order, by name; the step makes "loading" last 2 s.
    p = start(["--engine", "null", "--null-step-us", "2000000"],
              tmp + "/notify2", log, (admin, main),
              ("dcpd-admin.socket", "dcpd"))
    main.close()
    admin.close()
    until(notify, "STATUS=loading: self-test")
    loading = ctl(path, "status", "-j")
    assert loading.returncode == 4, loading
    assert json.loads(loading.stdout)["state"] == "loading"
    # A client that comes while it loads is served when it is ready.
    r = ctl(path, "generate", "--tokens", "1", "--max-tokens", "1", "-j")
    assert r.returncode == 0, r
    assert len(json.loads(r.stdout)["tokens"]) == 1
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0
    assert os.path.exists(path), "systemd's socket was removed"


def messages(sock, seconds):
    """All that come in that time."""
    end, seen = time.monotonic() + seconds, []
    while time.monotonic() < end:
        sock.settimeout(max(0.01, end - time.monotonic()))
        try:
            seen.append(sock.recv(4096).decode())
        except TimeoutError:
            pass
    return seen


def silence_while_stuck(notify, path):
    """One step; whether it lasted while we listened, and what came then."""
    client = subprocess.Popen([DCPCTL, "--socket", path, "generate",
                               "--tokens", "1", "--max-tokens", "1"],
                              stdout=subprocess.DEVNULL)
    while ctl(path, "status", "-j").returncode != 4 and client.poll() is None:
        time.sleep(0.05)
    messages(notify, 0.5)
    seen = messages(notify, 2)
    stuck = ctl(path, "status", "-j").returncode == 4
    assert client.wait(60) == 0
    return stuck, seen


def watched(tmp, log):
    """Pings while idle and while steps end, none while one does not."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(tmp + "/notify3")
    path = tmp + "/d"
    os.environ["WATCHDOG_USEC"] = "900000"
    try:
        p = start(["--engine", "null", "--null-step-us", "6000000",
                   "--stuck-after", "1", "--socket", path],
                  tmp + "/notify3", log)
    finally:
        del os.environ["WATCHDOG_USEC"]
    until(notify, "READY=1")
    for _ in range(2):
        until(notify, "WATCHDOG=1")
    # Not to be told on a machine that lets the step end before we look.
    for _ in range(5):
        stuck, seen = silence_while_stuck(notify, path)
        until(notify, "WATCHDOG=1")
        if stuck:
            break
    assert stuck, "never looked in time"
    assert not any("WATCHDOG=1" in m for m in seen), seen
    p.send_signal(signal.SIGTERM)
    ending = until(notify, "STOPPING=1")
    assert any("EXTEND_TIMEOUT_USEC=45000000" in m for m in ending), ending
    assert p.wait(20) == 0


def reloaded(tmp, log):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(tmp + "/notify4")
    p = start(["--engine", "null", "--socket", tmp + "/r"],
              tmp + "/notify4", log)
    until(notify, "READY=1")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    p.send_signal(signal.SIGHUP)
    m = until(notify, "RELOADING=1")[-1]
    at = int(m.split("MONOTONIC_USEC=")[1].split()[0])
    assert before <= at <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    until(notify, "READY=1")
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0


def device_lost(tmp, log):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(tmp + "/notify5")
    path = tmp + "/f"
    p = start(["--engine", "null", "--null-fail-after", "3", "--socket",
               path], tmp + "/notify5", log)
    until(notify, "READY=1")
    r = ctl(path, "generate", "--tokens", "1", "--max-tokens", "9")
    # The client hears of it before systemd is asked to end the process.
    assert r.returncode == 1 and "failed" in r.stderr, r
    seen = until(notify, "WATCHDOG=trigger")
    assert any("STATUS=failed: " in m for m in seen), seen
    assert p.wait(20) == 1


def wrong_kind(tmp, log):
    s = listener(tmp + "/w", socket.SOCK_STREAM)
    p = start(["--engine", "null", "--socket", tmp + "/w2"],
              tmp + "/notify", log, (s,), ("dcpd",))
    assert p.wait(20) == 78


def stopped_while_loading(tmp, log):
    path = tmp + "/l"
    p = start(["--engine", "null", "--null-step-us", "60000000", "--socket",
               path], tmp + "/notify", log)
    while ctl(path, "status").returncode != 4:
        assert p.poll() is None
        time.sleep(0.05)
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0          # and not the minute of its step
    assert not os.path.exists(path) and not os.path.exists(path + ".admin")


def main():
    with tempfile.TemporaryDirectory(prefix="dcpd-test.") as tmp:
        with open(tmp + "/log", "w+") as log:
            for case in (notified, activated, watched, reloaded,
                         device_lost, wrong_kind, stopped_while_loading):
                try:
                    case(tmp, log)
                except BaseException:
                    for p in started:
                        p.kill()
                    log.seek(0)
                    sys.stderr.write(log.read())
                    raise
                print("ok:", case.__name__)


main()
