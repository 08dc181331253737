"""Plugins and their host, against the real daemon: which files are loaded and
which refused with what reason, the life of a plugin, what the host tells it.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SRC = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(SRC, "tests/lib"))
from daemon import BUILD, Daemon, binary  # noqa: E402

NULL = ["--engine", "null"]


def build(path, *defines):
    """tests/plugins/probe.c as a plugin; only the header is ours."""
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1",
                    "-D_GNU_SOURCE", "-fvisibility=hidden",
                    "-I", f"{SRC}/libdcpclient", *defines, "-o", path,
                    f"{SRC}/tests/plugins/probe.c", "-ljansson", "-lpthread"],
                   check=True)


class Place:
    """A folder of plugins, and a configuration file."""

    def __init__(self, tmp):
        self.tmp = tmp
        self.dir = tmp + "/plugins"
        os.mkdir(self.dir)
        build(self.dir + "/probe.so")
        self.report = tmp + "/report"

    def config(self, plugins, **more):
        path = self.tmp + "/config"
        with open(path, "w") as f:
            json.dump({"plugins": plugins, **more}, f)
        return path

    def said(self):
        if not os.path.exists(self.report):
            return []
        with open(self.report) as f:
            text = f.read()
        # The last line may be under way.
        return text[:text.rfind("\n") + 1].splitlines()

    def daemon(self, *args, plugins=None, **more):
        if os.path.exists(self.report):
            os.unlink(self.report)
        args = [*NULL, "--plugin-dir", self.dir, *args]
        if plugins is not None:
            args += ["--config", self.config(plugins, **more)]
        return Daemon(*args)


def ends(place, *args, code=78, plugins=None):
    """The last line of a daemon that does not start."""
    args = [binary("dcpd"), *NULL, "--socket", place.tmp + "/s", *args]
    if plugins is not None:
        args += ["--config", place.config(plugins)]
    r = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert r.returncode == code, (r.returncode, r.stderr)
    assert not os.path.exists(place.tmp + "/s"), "the socket was left"
    last = r.stderr.splitlines()[-1]
    assert "error:" in last, last
    return last.split("error: ", 1)[1]


def refused(place, words, *args, **kw):
    said = ends(place, "--plugin-dir", place.dir, *args, **kw)
    for w in words:
        assert w in said, f"no {w!r} in: {said}"
    print("   ", said.replace(place.tmp, "TMP"))


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def plugins(d):
    return {p["name"]: p for p in d.ctl_json("plugins")}


# --- what is loaded ---------------------------------------------------------

def refused_files(place):
    """Every rule of a plugin's file, each by itself."""
    d = place.dir
    for name in ("absent", "../probe", "Probe", "pro.be", ""):
        refused(place, ["plugin absent", "absent.so", "No such file"]
                if name == "absent" else ["is no plugin's name", name],
                "--plugins", name or "probe,")
    good = d + "/probe.so"
    os.symlink(good, d + "/link.so")
    refused(place, ["link.so", "symbolic link"], "--plugins", "link")
    os.mkfifo(d + "/pipe.so")
    refused(place, ["pipe.so", "no regular file"], "--plugins", "pipe")
    os.mkdir(d + "/dir.so")
    refused(place, ["dir.so", "no regular file"], "--plugins", "dir")
    with open(d + "/text.so", "w") as f:
        f.write("not a shared object\n" * 300)
    refused(place, ["text.so", "ELF"], "--plugins", "text")
    for mode, name in ((0o775, "group"), (0o757, "others")):
        shutil.copy(good, f"{d}/{name}.so")
        os.chmod(f"{d}/{name}.so", mode)
        refused(place, [f"{name}.so", "may be written", f"{mode:04o}"],
                "--plugins", name)
    if os.geteuid() == 0:
        shutil.copy(good, d + "/owner.so")
        os.chown(d + "/owner.so", 12345, 0)
        refused(place, ["owner.so", "belongs to user 12345"],
                "--plugins", "owner")


def refused_folders(place):
    """The folder and those above it have to be safe, too."""
    os.chmod(place.dir, 0o775)
    refused(place, [place.dir, "may be written"], "--plugins", "probe")
    os.chmod(place.dir, 0o755)
    above = place.tmp + "/open"
    os.makedirs(above + "/in")
    shutil.copy(place.dir + "/probe.so", above + "/in")
    os.chmod(above, 0o777)
    said = ends(place, "--plugin-dir", above + "/in", "--plugins", "probe")
    assert above + " may be written" in said, said
    os.chmod(above, 0o1777)              # sticky: nobody can rename ours
    with Daemon(*NULL, "--plugin-dir", above + "/in", "--plugins",
                "probe") as d:
        assert "probe" in plugins(d)
    said = ends(place, "--plugin-dir", place.tmp + "/none", "--plugins", "a")
    assert "No such file" in said and "--plugin-dir" in said, said
    assert "--plugin-dir plugins/.libs" in said, said
    # A link to the folder is followed; what it leads to is what is checked.
    os.symlink(place.dir, place.tmp + "/to")
    with Daemon(*NULL, "--plugin-dir", place.tmp + "/to", "--plugins",
                "probe") as d:
        assert "probe" in plugins(d)


def refused_objects(place):
    """A shared object that is no plugin of this ABI, by its reason."""
    for name, define, words in (
            ("magic", "-DPROBE_MAGIC=0x12345678", ["magic 12345678"]),
            ("major", "-DPROBE_MAJOR=77", ["plugin ABI 77.0", "has 1.0"]),
            ("minor", "-DPROBE_MINOR=99", ["plugin ABI 1.99"]),
            ("size", "-DPROBE_SIZE=8", ["struct_size 8"]),
            ("able", "-DPROBE_CAPABILITIES=4", ["capabilities 0x4"]),
            ("other", "-DPROBE_X", ['calls itself "probe"']),
            ("symbol", "-DPROBE_NO_SYMBOL", ["no dcp_plugin_get"]),
            ("null", "-DPROBE_NULL", ["nothing for plugin ABI 1.0"]),
            ("stop", "-DPROBE_STOP=NULL", ["stop", "is missing"])):
        defines = [define]
        if name != "other":
            defines.append(f'-DPROBE_NAME="{name}"')
        build(f"{place.dir}/{name}.so", *defines)
        refused(place, [f"plugin {name}", *words], "--plugins", name)


def refused_starts(place):
    """A plugin that fails names itself and its reason; the daemon does not
    run half-configured, and what had started is stopped."""
    for when in ("create", "start"):
        refused(place, ["plugin probe: asked to fail here; ask for less"],
                plugins={"probe": {"fail": when}})
        refused(place, ["plugin probe:", "in use", when],
                plugins={"probe": {"fail": when, "why": False}})
    build(place.dir + "/probe2.so", '-DPROBE_NAME="probe2"')
    refused(place, ["plugin probe2"], plugins={
        "probe": {"report": place.report},
        "probe2": {"report": place.report, "fail": "start"}})
    said = [s for s in place.said() if not s.startswith(("state", "{", "["))]
    # Not destroyed before its thread has ended; the last goes first.
    assert said == ["create", "create", "start", "start", "destroy", "stop",
                    "destroy"], said


# --- its life ---------------------------------------------------------------

def life(place):
    """From before the model loads to the end, in reverse order; what the host
    says; stats in dcpctl plugins."""
    with place.daemon("--null-step-us", 700000, "--tp", 2, "--dcp-size", 2,
                      plugins={"probe": {"report": place.report},
                               "probe2": {"report": place.report}}) as d:
        p = plugins(d)
        assert list(p) == ["probe", "probe2"]
        assert p["probe"]["version"] == "1.2"
        assert p["probe"]["state"] == "running"
        assert p["probe"]["config"] == {"report": place.report}
        until(lambda: plugins(d)["probe"]["stats"]["ticks"] >
              p["probe"]["stats"]["ticks"])
        r = d.ctl("plugins")
        assert "probe2" in r.stdout and "ticks" in r.stdout, r
        until(lambda: place.said().count("state 1") == 2)
        said = place.said()
        # The self-test is one step of 0.7 s: both ran while it did.
        assert said.index("state 0") < said.index("state 1"), said
        status = [json.loads(s) for s in said if s.startswith('{"state"')]
        assert status and all(s["state"] == "loading" for s in status)
        lists = [json.loads(s) for s in said if s.startswith("[")]
        assert [] in lists
        counters = [s for s in lists if s][0]
        assert any(c["name"] == "steps" and c["kind"] == "counter" and
                   c["help"] and c["value"] == 0 for c in counters)
        assert any(c["name"] == "pages_free" and c["kind"] == "gauge"
                   for c in counters)
        assert "flush -11" in said, "a cache before there is one"
        assert "fd -2" in said
        assert d.stop() == 0
    said = [s for s in place.said() if s in ("drain", "stop", "destroy")]
    assert said == ["drain"] * 2 + ["stop", "destroy"] * 2, said


def once_ready(place):
    """Of a daemon that serves: counters per rank, requests, a flush."""
    with place.daemon("--tp", 2, "--dcp-size", 2, "--null-step-us", 2000,
                      plugins={"probe": {"report": place.report,
                                         "ask_when": 1}}) as d:
        with d.client() as c:
            c.generate(tokens=list(range(1, 200)), max_tokens=2)
            held = d.ctl_json("cache", "stats")["pages_cached"]
            assert held == 3
            rid = c.submit(tokens=[5], max_tokens=100000)
            until(lambda: any(r["state"] == "decode"
                              for r in d.ctl_json("requests")))
            open(place.report + ".ask", "w").close()
            until(lambda: any(s.startswith("flush") for s in place.said()))
            c.cancel(rid)
            c.wait([rid])
            again = c.generate(tokens=list(range(1, 200)), max_tokens=2)
            assert again.usage["cached_tokens"] == 0
        said = place.said()
        assert "flush 0 of 3" in said, said
        lists = [json.loads(s) for s in said if s.startswith("[")]
        assert any(r["state"] == "decode" for r in lists[0]), lists[0]
        ranks = [c for c in lists[1] if c["name"] == "rank_pages_cached"]
        assert [(c["rank"], c["value"]) for c in ranks] == [(0, 3), (1, 3)]


def reloads(place):
    """A changed configuration goes to every plugin or to none; a check
    changes nothing; which plugins there are needs a restart."""
    one = {"probe": {"report": place.report, "n": 1},
           "probe2": {"report": place.report, "n": 1}}

    def told():
        return [s for s in place.said() if s.startswith('{"n"') or
                '"n":' in s and s.startswith('{"report"')]

    with place.daemon(plugins=one) as d:
        def conf():
            return {n: p["config"] for n, p in plugins(d).items()}

        assert conf() == one
        two = {n: {**o, "n": 2} for n, o in one.items()}
        place.config(two)
        r = d.ctl("reload", "--check")
        assert r.returncode == 0, r
        assert "would change, unless a plugin wants a restart" in r.stdout, r
        assert conf() == one and not told()
        d.p.send_signal(signal.SIGHUP)
        until(lambda: conf() == two)
        assert [json.loads(s)["n"] for s in told()] == [2, 2]
        # The second refuses: the first goes back.
        place.config({"probe": {**one["probe"], "n": 3},
                      "probe2": {**one["probe2"], "n": 3, "fail": "reload"}})
        r = d.ctl("reload")
        assert r.returncode == 1, r
        assert "plugin probe2: asked to fail here" in r.stderr, r
        assert conf() == two
        assert [json.loads(s)["n"] for s in told()[2:]] == [3, 3, 2]
        # A key that create refuses is found by the check.
        place.config({"probe": {**one["probe"], "fail": "create"},
                      "probe2": one["probe2"]})
        r = d.ctl("reload", "--check")
        assert r.returncode == 1 and "plugin probe:" in r.stderr, r
        place.config({"probe": one["probe"]})
        r = d.ctl("reload")
        assert r.returncode == 1, r
        assert "probe2 is no longer asked for: restart" in r.stderr, r
        place.config({**one, "probe3": {}})
        r = d.ctl("reload")
        assert r.returncode == 1, r
        assert "probe3 is not loaded: restart" in r.stderr, r
        assert conf() == two
        assert all(p["state"] == "running" for p in plugins(d).values())


def gives_up(place):
    """host->failed ends the daemon with the plugin's line, exit code 1."""
    with place.daemon(plugins={"probe": {"die_after": 100}}) as d:
        until(lambda: d.p.poll() is not None)
        assert d.p.returncode == 1
        last = d.tail(1)
        assert "error: plugin probe: asked to give up" in last, last


def silent(place):
    """A thread that does not tick is stuck in dcpctl plugins, is logged, and
    systemd's watchdog is not fed any more."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(place.tmp + "/notify")
    fed = []

    def read():
        while (m := notify.recv(4096)) != b"end":
            if b"WATCHDOG=1" in m:
                fed.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with place.daemon(plugins={"probe": {}}) as good:
            d = place.daemon(plugins={"probe": {"tick": False}})
            d.env = {"NOTIFY_SOCKET": place.tmp + "/notify",
                     "WATCHDOG_USEC": "1000000"}
            with d:
                assert plugins(d)["probe"]["state"] == "running"
                until(lambda: fed)
                until(lambda: "probe: its thread has not been seen" in
                      d.tail())
                p = plugins(d)["probe"]
                assert p["state"] == "stuck" and p["tick_age_s"] > 10, p
                n = len(fed)
                time.sleep(3)
                assert len(fed) == n, "the watchdog is fed"
            # One that ticks has been there for longer.
            assert plugins(good)["probe"]["state"] == "running"
            assert "has not been seen" not in good.tail(100)
    finally:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", place.tmp + "/notify")
        reader.join()
        notify.close()


def example(place):
    """plugins/example is under 100 lines, and does what it says."""
    with open(f"{SRC}/plugins/example/canary.c") as f:
        assert len(f.readlines()) < 100
    d = Daemon(*NULL, "--plugins", "canary")
    d.env = {"DCPD_PLUGIN_DIR": os.path.relpath(BUILD + "/plugins/.libs")}
    with d:
        until(lambda: "canary: 16 tokens came" in d.tail())
        assert plugins(d)["canary"]["state"] == "running"
        assert d.ctl_json("status")["counters"]["requests_finished"] == 1
        assert d.stop() == 0
    said = ends(place, "--plugin-dir", BUILD + "/plugins/.libs",
                plugins={"canary": {"every": 3}})
    assert said == "plugin canary: it has no keys: give it no " \
        "configuration", said


def from_systemd(place):
    """listen_fd gives the socket of that name, and it is the plugin's own."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    fd = os.dup2(s.fileno(), 100)
    config = place.config({"probe": {"report": place.report,
                                     "fd": "dcpd-http"}})
    if os.path.exists(place.report):
        os.unlink(place.report)
    p = subprocess.Popen(
        ["bash", "-c", 'exec 3<&100 100<&-; LISTEN_PID=$$ exec "$0" "$@"',
         binary("dcpd"), *NULL, "--socket", place.tmp + "/s2", "--plugin-dir",
         place.dir, "--config", config], pass_fds=[fd],
        env=dict(os.environ, LISTEN_FDS="1", LISTEN_FDNAMES="dcpd-http"))
    os.close(fd)
    try:
        until(lambda: any(x.startswith("fd ") for x in place.said()))
        line = [x for x in place.said() if x.startswith("fd ")][0]
        assert line.endswith(f"port {s.getsockname()[1]}"), line
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(40) == 0


CASES = (refused_files, refused_folders, refused_objects, refused_starts, life,
         once_ready, reloads, gives_up, silent, example, from_systemd)


def main():
    for case in CASES:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory(prefix="dcpd-test.") as tmp:
            place = Place(tmp)
            if case in (life, reloads):
                build(place.dir + "/probe2.so", '-DPROBE_NAME="probe2"')
            case(place)
        print("ok:", case.__name__, flush=True)


main()
