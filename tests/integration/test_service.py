"""What an admin relies on: a reload changes what it can, says what it cannot
and changes nothing on a mistake; status answers for a daemon that does not; a
step that does not end is told from a client that does not read.
"""
import ctypes
import fcntl
import glob
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
from daemon import Daemon, binary  # noqa: E402
from httpd import HttpDaemon  # noqa: E402


def until(what, fn, seconds=60):
    end = time.monotonic() + seconds
    while not fn():
        assert time.monotonic() < end, "never: " + what
        time.sleep(0.05)


class Configured(Daemon):
    """With a --config of its own, in self.conf."""

    def __init__(self, conf, *args, **kw):
        super().__init__(*args, **kw)
        self.conf = os.path.join(self.dir, "dcpd.conf")
        self.write(conf)
        self.args += ["--config", self.conf]

    def write(self, conf):
        with open(self.conf, "w") as f:
            f.write(conf if isinstance(conf, str) else json.dumps(conf))


NULL = {"engine": "null", "queue-max": 100}


def reload_changes_what_it_can():
    with Configured(NULL, "--max-clients", 10) as d:
        held = [d.client() for _ in range(3)]
        d.write(dict(NULL, **{"max-clients": 3, "max-clients-per-user": 3,
                              "queue-max": 7, "tp": 2}))
        # The command line goes first, so that max-clients does not change.
        would = d.ctl_json("reload", "--check")
        assert would["check"] is True
        assert would["changed"] == {
            "max-clients-per-user": {"from": 128, "to": 3},
            "queue-max": {"from": 100, "to": 7}}, would
        assert would["restart"] == {"tp": {"from": 1, "to": 2}}, would
        assert d.ctl_json("config")["queue-max"] == 100, "--check changed it"
        did = d.ctl_json("reload")
        assert did == dict(would, check=False), did
        r = d.ctl("reload")
        assert r.returncode == 0 and r.stdout == \
            "tp: 2, was 1; needs a restart\n", r
        now = d.ctl_json("config", "show")
        assert now["queue-max"] == 7 and now["tp"] == 1, now
        assert d.ctl_json("status")["limits"]["queue_max"] == 7
        assert d.ctl_json("config", "changed")["queue-max"] == {
            "value": 7, "default": 1024, "from": "file"}
        # Acts: who is in stays, a fourth is refused.
        try:
            held.append(d.client())
        except Exception as e:
            assert "the most it may have" in str(e), e
        else:
            raise AssertionError("max-clients-per-user 3 let a fourth in")
        for c in held:
            c.close()


def a_mistake_changes_nothing():
    with Configured(NULL) as d:
        for conf, words in (
                ("{", (".conf:1",)),
                ({"engine": "null", "queue-max": 0}, ("queue-max", "from 1")),
                ({"engine": "null", "queue-max": 9, "dpc-size": 8},
                 ("dpc-size", "dcp-size")),
                ({"engine": "null", "queue-max": 9, "dcp-size": 3},
                 ("--dcp-size",))):
            d.write(conf)
            for args in (("reload", "--check"), ("reload",)):
                r = d.ctl(*args)
                assert r.returncode == 1, r
                assert all(w in r.stderr for w in words), r.stderr
            assert d.ctl_json("config")["queue-max"] == 100
        os.unlink(d.conf)
        r = d.ctl("reload")
        assert r.returncode == 1 and "dcpd.conf" in r.stderr, r
        assert d.ctl("status").returncode == 0


def a_plugin_that_refuses_changes_nothing():
    d = HttpDaemon("--engine", "null")
    conf = d.dir + "/dcpd.conf"
    d.args += ["--config", conf]

    def write(text):
        with open(conf, "w") as f:
            f.write(text)
    write('{"queue-max": 100}')
    with d:
        write('{"queue-max": 9, "plugins": {"http": {"nay": 1}}}')
        for args in (("reload", "--check"), ("reload",)):
            r = d.ctl(*args)
            assert r.returncode == 1 and "nay" in r.stderr, r
        assert d.ctl_json("status")["limits"]["queue_max"] == 100
        write('{"queue-max": 9}')
        # It knows what is in force.
        assert d.ctl_json("reload")["changed"] == {
            "queue-max": {"from": 100, "to": 9}}


def sighup_reloads():
    with Configured(NULL) as d:
        d.write(dict(NULL, **{"queue-max": 8}))
        d.p.send_signal(signal.SIGHUP)
        until("queue-max 8",
              lambda: d.ctl_json("config")["queue-max"] == 8)
        d.write("nonsense")
        d.p.send_signal(signal.SIGHUP)
        until("the refusal in the log",
              lambda: "nothing changed" in d.tail(5))
        assert d.ctl_json("config")["queue-max"] == 8


def sighup_waits_from_the_beginning():
    """From the moment when the configuration is read, before any thread is
    there to take signals. It is long, so that there is time to see that."""
    conf = json.dumps(NULL) + " " * 900_000
    d = Configured(conf)
    with open(d.log, "wb") as log:
        p = subprocess.Popen(d.args, stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log)
    try:
        read = 0
        while read < len(conf):
            with open(f"/proc/{p.pid}/io") as f:
                read = int(f.readline().split()[1])
            assert p.poll() is None
        p.send_signal(signal.SIGHUP)
        with open(f"/proc/{p.pid}/status") as f:
            blocked = int(re.search(r"SigBlk:\s*(\w+)", f.read())[1], 16)
        assert blocked >> signal.SIGHUP - 1 & 1, "SIGHUP is not held"
        until("an end of the reload", lambda: p.poll() is not None or
              "reloaded: " in d.tail())
        assert p.poll() is None, f"ended with {p.returncode}"
    finally:
        p.terminate()
        rc = p.wait(60)
        d.stop()
    assert rc == 0, rc


def status_answers_for_a_stopped_daemon():
    with Daemon("--engine", "null", "--null-step-us", 1000, "--tp", 4,
                "--dcp-size", 4) as d:
        with d.client() as c:
            c.generate(tokens=[1], max_tokens=5)
        before = d.ctl_json("status")["counters"]
        d.p.send_signal(signal.SIGSTOP)
        try:
            time.sleep(3)
            r = d.ctl("status", "-j")
            assert r.returncode == 4, r
            s = json.loads(r.stdout)
            assert s["state"] == "degraded" and s["last_state"] == "ready", s
            assert s["pid"] == d.p.pid and "stands still" in s["problem"], s
            assert s["counters"]["output_tokens"] == 5
            assert set(s["counters"]) == set(before)
            assert (s["tp"], s["dcp"]) == (4, 4)
            r = d.ctl("top")
            assert r.returncode == 0 and "does not answer" in r.stdout, r
        finally:
            d.p.send_signal(signal.SIGCONT)
        until("ready again", lambda: d.ctl("status").returncode == 0)
        # One that is dead is not running, whatever it left.
        d.p.kill()
        d.p.wait()
        assert os.path.exists(d.socket + ".stats")
        assert d.ctl("status").returncode == 3
        assert d.ctl("top").returncode == 3
    assert not os.path.exists(d.socket + ".stats")


def status_is_quick_where_nothing_is():
    """A daemon that stands still, and its page is gone."""
    with Daemon("--engine", "null") as d:
        os.unlink(d.socket + ".stats")
        assert d.ctl("status").returncode == 0
        d.p.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            r = d.ctl("status")
            took = time.monotonic() - began
        finally:
            d.p.send_signal(signal.SIGCONT)
        assert r.returncode == 1 and took < 4, (r, took)
        assert f"process {d.p.pid} " in r.stderr, r
        # systemd has the socket before its daemon runs, and starts that.
        at = os.path.join(d.dir, "held")
        held = subprocess.Popen([sys.executable, "-c", """if True:
            import socket, sys, time
            with open("/proc/self/comm", "w") as f:
                f.write("systemd")
            s = socket.socket(socket.AF_UNIX)
            s.bind(sys.argv[1])
            s.listen()
            time.sleep(2.5)
            c = s.accept()[0]
            c.recv(999)
            c.sendall(b'{"ok": true, "result": {"ready": true}}\\n')
            """, at + ".admin"])
        until("its socket", lambda: os.path.exists(at + ".admin"))
        time.sleep(0.2)
        r = subprocess.run([binary("dcpctl"), "--socket", at, "status"],
                           capture_output=True, text=True, timeout=60)
        assert held.wait(60) == 0 and r.returncode == 0, r


def the_page_of_another_daemon_is_not_shown():
    """--admin-socket alone does not say whose page there might be."""
    with Daemon("--engine", "null") as d, \
            socket.socket(socket.AF_UNIX) as other:
        at = os.path.join(d.dir, "other")
        other.bind(at)
        r = subprocess.run([binary("dcpctl"), "--admin-socket", at, "status"],
                           capture_output=True, text=True, timeout=60)
        assert r.returncode == 3 and r.stdout == "", r
        # A socket without an owner that answers, and slower than a page is.
        other.listen()

        def answer():
            c = other.accept()[0]
            c.recv(999)
            time.sleep(2)
            c.sendall(b'{"ok": true, "result": {"ready": true}}\n')
            c.close()
        t = threading.Thread(target=answer)
        t.start()
        r = subprocess.run([binary("dcpctl"), "--admin-socket", at, "status"],
                           capture_output=True, text=True, timeout=60)
        t.join()
        assert r.returncode == 0, r
        # Too long a path is told once.
        r = subprocess.run([binary("dcpctl"), "--socket", "/" + "a" * 200,
                            "status"], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode == 2 and r.stderr.count("\n") == 1, r


def a_check_that_waits_delays_neither_a_reload_nor_the_end():
    # Not to be told on a machine that lets the step end before we look.
    assert any(reload_and_end_while_a_check_waits() for _ in range(5)), \
        "the check was answered first, each time"


def reload_and_end_while_a_check_waits():
    """One step; whether both were done before it, and so the check, ended."""
    with Configured(NULL, "--null-step-us", 9000000) as d, d.client() as c, \
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as check:
        c.submit(tokens=[1], max_tokens=1)
        until("a step", lambda: d.ctl_json("status")["since_step_s"] > 0)
        check.connect(d.socket + ".admin")
        check.sendall(b'{"cmd":"check"}\n')

        def waits():
            return not select.select([check], [], [], 0)[0]
        # There is one at a time: a second is refused where the first waits.
        taken = "another such command" in d.ctl("check").stderr
        d.write(dict(NULL, **{"queue-max": 7}))
        d.p.send_signal(signal.SIGHUP)
        until("reloaded", lambda: "reloaded: 1 changed" in d.tail())
        assert d.ctl_json("config")["queue-max"] == 7
        reloaded = waits()
        d.p.send_signal(signal.SIGTERM)
        until("stopping", lambda: d.p.poll() is not None or json.loads(
            d.ctl("status", "-j").stdout or "{}").get("state") == "stopping")
        stopping = waits()
        assert d.p.wait(60) == 0
        return taken and reloaded and stopping


def a_page_cut_short_harms_no_reader():
    """Its owner truncates it again and again while others look."""
    with Daemon("--engine", "null") as d:
        with open(d.socket + ".stats", "rb") as f:
            page = f.read()
        at = os.path.join(d.dir, "hostile")
        env = dict(os.environ, DCPD_SOCKET=at)
        cut = subprocess.Popen([sys.executable, "-c", """if True:
            import fcntl, os, sys
            page = sys.stdin.buffer.read()
            fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
            fcntl.flock(fd, fcntl.LOCK_EX)
            while True:
                os.pwrite(fd, page, 0)
                for i in range(9):
                    pass
                os.ftruncate(fd, 0)
            """, at + ".stats"], stdin=subprocess.PIPE)
        cut.stdin.write(page)
        cut.stdin.close()
        until("a page", lambda: os.path.exists(at + ".stats"))
        try:
            ends = [subprocess.run([binary("dcpctl"), "status", "-j"],
                                   env=env, capture_output=True,
                                   timeout=60).returncode
                    for _ in range(150)]
        finally:
            cut.kill()
            cut.wait()
        # 3: there was no page at that moment; 4: there was.
        assert set(ends) <= {3, 4}, set(ends)
        assert 4 in ends, "nobody saw a whole page"
        # Names that are no text, a number of counters that is too large.
        for at_byte, bad in ((24, b"\xff" * 32), (68, b"\xff" * 4)):
            with open(at + ".stats", "wb") as f:
                f.write(page[:at_byte] + bad + page[at_byte + len(bad):])
                f.flush()
                fcntl.flock(f, fcntl.LOCK_EX)
                r = subprocess.run([binary("dcpctl"), "status", "-j"], env=env,
                                   capture_output=True, timeout=60)
                assert r.returncode in (3, 4), (at_byte, r)
        # Names that would steer a terminal.
        release = page.index(b"\0", 24)
        for text in (b"\x1b[2Jx\x07", "x\x9b2J\u2028".encode(), b"\x9b2J\x7f"):
            names = bytearray(page[:24] + (text + bytes(32))[:32] + page[56:])
            for word in (b"requests_running", b"tokens_pages"):
                at_byte = names.find(word, release)
                if at_byte > 0:
                    names[at_byte:at_byte + len(text)] = text
            with open(at + ".stats", "wb") as f:
                f.write(names)
                f.flush()
                fcntl.flock(f, fcntl.LOCK_EX)
                for args in (["status"], ["status", "-j"], ["top"]):
                    r = subprocess.run([binary("dcpctl"), *args], env=env,
                                       capture_output=True, timeout=60)
                    assert r.returncode in (0, 4), (args, r)
                    assert re.search(rb"[^\n -~]", r.stdout) is None, r.stdout


def nobody_may_write_the_page():
    with Daemon("--engine", "null") as d:
        st = os.stat(d.socket + ".stats")
        assert st.st_mode & 0o777 == 0o640, oct(st.st_mode)
        # Another daemon on that socket does not take the page over.
        r = subprocess.run([binary("dcpd"), "--engine", "null", "--socket",
                            d.socket], capture_output=True, text=True,
                           timeout=60)
        assert r.returncode == 78, r
        assert os.stat(d.socket + ".stats").st_ino == st.st_ino


def a_long_step_is_stuck():
    with Daemon("--engine", "null", "--null-step-us", 6000000,
                "--stuck-after", 1) as d:
        with d.client() as c:
            c.submit(tokens=[1, 2, 3], max_tokens=1)
            until("stuck", lambda: json.loads(
                d.ctl("status", "-j").stdout)["state"] == "stuck")
            assert d.ctl("status").returncode == 4
            until("the line", lambda: "stuck: step 1 has not ended" in
                  d.tail(3) and "prefill of 3 rows of 1 requests" in
                  d.tail(3))
            until("ready", lambda: d.ctl("status").returncode == 0)
            until("the other line", lambda: "steps end again" in d.tail(3))


def a_client_that_does_not_read_is_not_a_stuck_daemon():
    """Its unread answers fill its quota, so that its next request waits for
    as long as it likes, and no step has anything to do."""
    with Daemon("--engine", "null", "--stuck-after", 1,
                "--max-bytes-per-user", "4MiB") as d:
        with d.client() as c:
            def waits():
                if d.ctl_json("status")["live"] < 5:
                    c.submit(tokens=[1], max_tokens=20000)
                a = d.ctl_json("status")
                time.sleep(0.3)
                b = d.ctl_json("status")
                return b["waiting"] > 0 and b["running"] == 0 and \
                    a["counters"]["steps"] == b["counters"]["steps"]
            until("a request that waits for its client", waits)
            time.sleep(2)
            s = d.ctl_json("status")
            assert s["state"] == "ready" and s["waiting"] > 0, s


def reports(d):
    return sorted(glob.glob(d.dir + "/state/crash-*.txt"))


def a_crash_leaves_a_report():
    for sig in (signal.SIGSEGV, signal.SIGABRT):
        d = Daemon("--engine", "null", "--null-step-us", 3000000, "--tp", 4,
                   "--dcp-size", 2)
        os.mkdir(d.dir + "/state")
        d.args += ["--state-dir", d.dir + "/state"]
        for i in range(12):     # those of other days
            with open(f"{d.dir}/state/crash-10000000{i:02}-1.txt", "w"):
                pass
        with d:
            assert len(reports(d)) == 10, "old reports were not pruned"
            assert "reports of 12 crashes" in open(d.log).read()
            with d.client() as c:
                c.submit(tokens=[1, 2, 3], max_tokens=5)
                until("a step", lambda: d.ctl_json("status")
                      ["since_step_s"] > 0)
                d.p.send_signal(sig)
                assert d.p.wait(30) == -sig, "the signal's own end is lost"
            new = reports(d)[-1]
            assert oct(os.stat(new).st_mode & 0o777) == "0o640"
            with open(new) as f:
                text = f.read()
            for want in (f"process {d.p.pid},", f"signal {int(sig)}",
                         "state: ready", "step 1: prefill of 3 rows, "
                         "1 requests, 1 pages, 1 samples", "has not ended",
                         "ranks: 0 to 3, groups of 2", "requests_total 1\n",
                         "backtrace of the step thread:\n", "r-xp"):
                assert want in text, (want, text)
            assert f"report: {new}" in d.tail(2), d.tail(2)
            # The step thread was found where it was.
            if shutil.which("addr2line"):
                part = text.split("of the step thread:\n")[1]
                at = re.findall(r"dcpd\+(0x[0-9a-f]+)",
                                part.split("\nmaps:")[0])
                names = subprocess.run(
                    ["addr2line", "-f", "-e", binary("dcpd"), *at],
                    capture_output=True, text=True).stdout.split()
                assert "step_main" in names or "??" in names, names


def so_does_one_of_any_thread():
    """Those that read what clients send above all."""
    for name in ("http", "dcpd-text"):
        d = HttpDaemon("--engine", "null")
        os.mkdir(d.dir + "/state")
        d.args += ["--state-dir", d.dir + "/state"]
        with d:
            task = [int(p.split("/")[4])
                    for p in glob.glob(f"/proc/{d.p.pid}/task/*/comm")
                    if open(p).read().strip() == name][0]
            assert ctypes.CDLL(None, use_errno=True).syscall(
                234, d.p.pid, task, int(signal.SIGSEGV)) == 0     # tgkill
            assert d.p.wait(30) == -signal.SIGSEGV
            with open(reports(d)[-1]) as f:
                assert f"thread: {name}, {task}\n" in f.read()


def an_engine_that_fails_leaves_a_report():
    d = Daemon("--engine", "null", "--null-fail-after", 20)
    os.mkdir(d.dir + "/state")
    # As systemd says it.
    d.env = {"STATE_DIRECTORY": d.dir + "/state:/nonexistent"}
    with d:
        r = d.ctl("generate", "--tokens", "1", "--max-tokens", "100")
        assert r.returncode == 1 and "null-fail-after" in r.stderr, r
        assert d.p.wait(30) == 1
        with open(reports(d)[-1]) as f:
            text = f.read()
        assert "state: failed" in text and "--null-fail-after" in text, text
        assert "step 20: decode of 1 rows" in text, text
        assert "error: " in d.tail(1) and "step 21 failed" in d.tail(1)


def no_state_folder_is_a_mistake():
    r = subprocess.run([binary("dcpd"), "--engine", "null", "--state-dir",
                        "/nonexistent/x"], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 78, r
    assert "--state-dir /nonexistent/x" in r.stderr.splitlines()[-1], r


PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


class Stopped:
    """One thread of another process stands still meanwhile."""

    def __init__(self, tid):
        self.tid = tid

    def ptrace(self, what):
        # On failure the raw call gives -1 too.
        if ctypes.CDLL(None, use_errno=True).ptrace(
                what, self.tid, None, None) != 0:
            raise PermissionError(ctypes.get_errno(), "ptrace")

    def __enter__(self):
        self.ptrace(PTRACE_SEIZE)
        self.ptrace(PTRACE_INTERRUPT)
        os.waitpid(self.tid, WALL)

    def __exit__(self, *_):
        self.ptrace(17)         # PTRACE_DETACH


def a_rank_thread_that_stops_is_named():
    with HttpDaemon("--tp", 4, "--dcp-size", 4, "--cpu-threads", 2,
                    "--stuck-after", 1) as d:
        task = f"/proc/{d.p.pid}/task"
        tid = [int(t) for t in os.listdir(task)
               if open(f"{task}/{t}/comm").read().startswith("dcpd-cpu-")]
        assert len(tid) == 1, tid
        with d.client() as c:
            c.submit(text="The river", max_tokens=3000, flags=0)
            until("it decodes", lambda: d.ctl_json("status")
                  ["counters"]["decode_steps"] > 2)
            try:
                stopped = Stopped(tid[0])
                stopped.__enter__()
            except PermissionError as e:
                print("  not here:", e)
                return
            try:
                until("stuck", lambda: json.loads(
                    d.ctl("status", "-j").stdout)["state"] == "stuck")
                status, _, body = d.ask("GET", "/health")
                assert status == 503, status
                assert json.loads(body)["status"] == "stuck", body
                until("the line", lambda: "stuck: " in d.tail(1), 5)
                line = d.tail(1)
                assert re.search(
                    r"stuck: step \d+ has not ended for \d+ s: decode of 1 "
                    r"rows of 1 requests, in layer \d+, \w+; ranks 0 to 3 "
                    rf"wait for CPU worker 1 \(thread {tid[0]}\), task \d+ "
                    r"of \d+\n$", line), line
                assert d.ctl("status").returncode == 4
            finally:
                stopped.__exit__()
            until("steps end again", lambda: d.ctl(
                "status").returncode == 0)
            assert d.ask("GET", "/health")[0] == 200


CASES = [
    reload_changes_what_it_can, a_mistake_changes_nothing,
    a_plugin_that_refuses_changes_nothing, sighup_reloads,
    sighup_waits_from_the_beginning,
    status_answers_for_a_stopped_daemon, status_is_quick_where_nothing_is,
    the_page_of_another_daemon_is_not_shown,
    a_page_cut_short_harms_no_reader,
    nobody_may_write_the_page,
    a_check_that_waits_delays_neither_a_reload_nor_the_end,
    a_long_step_is_stuck,
    a_client_that_does_not_read_is_not_a_stuck_daemon,
    a_rank_thread_that_stops_is_named, a_crash_leaves_a_report,
    so_does_one_of_any_thread,
    an_engine_that_fails_leaves_a_report, no_state_folder_is_a_mistake,
]

# Under the sanitizers, which take the signals of a crash and double the time:
# what the main, signal and admin threads share.
SANITIZED = [
    reload_changes_what_it_can, a_mistake_changes_nothing,
    a_plugin_that_refuses_changes_nothing, sighup_reloads,
    sighup_waits_from_the_beginning,
    status_answers_for_a_stopped_daemon, status_is_quick_where_nothing_is,
    the_page_of_another_daemon_is_not_shown,
    a_page_cut_short_harms_no_reader,
    nobody_may_write_the_page,
    an_engine_that_fails_leaves_a_report, no_state_folder_is_a_mistake,
]

with open(binary("dcpd"), "rb") as program:
    if re.search(rb"lib[at]san\.so", program.read()):
        CASES = SANITIZED

for case in CASES:
    if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]:
        case()
        print("ok:", case.__name__, flush=True)
