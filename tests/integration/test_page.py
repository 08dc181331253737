#!/usr/bin/env python3
"""The page at / in a real browser (headless Chromium): it loads without a
complaint, shows what the daemon does, answers in its chat box, asks for a key,
fits a phone and the dark, and is used with a keyboard alone. Then what /live
costs: one sampler for all viewers, none for nobody, slow viewers get less.

With DCPD_SHOTS=DIR the pictures of doc/img are drawn there.
"""
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import browser  # noqa: E402
from dcpclient import IGNORE_EOS  # noqa: E402
from httpd import HttpDaemon  # noqa: E402

MODEL = os.path.join(srcdir, "models/dcp-tiny")
SHOTS = os.environ.get("DCPD_SHOTS")
EIGHT = ["--model", MODEL, "--tp", 8, "--dcp-size", 8, "--kv-bytes-per-rank",
         6000000]
QUESTION = ("Ann has 12 pears. Ben gives Ann 13 more. How many pears does Ann "
            "have now?")
READY = "document.getElementById('state').textContent === 'ready'"
RANKS = "document.querySelectorAll('#ranks li').length"


def until(said, what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "never: " + said
        time.sleep(.05)


def live(d):
    """What the plugin says of its viewers."""
    return next(p for p in d.ctl_json("plugins")
                if p["name"] == "http")["stats"]["live"]


def two_frames_later(d):
    """By the daemon's clock it would have sent two, had anybody looked."""
    begin = d.ctl_json("status")["uptime_s"]
    until("time passes", lambda: d.ctl_json("status")["uptime_s"] > begin + 1)


# --- in the browser ---------------------------------------------------------

def its_policy(p):
    """It takes effect: what a page would have to be told to run does not."""
    p.eval("""{ const s = document.createElement('script');
        s.textContent = 'window.ran = true'; document.body.append(s); }""")
    assert p.eval("window.ran") is None
    assert p.eval("fetch('http://127.0.0.1:1/').then(() => 'sent', "
                  "e => String(e))") != "sent"
    assert any("Content Security Policy" in c for c in p.complaints), \
        p.complaints
    p.complaints.clear()


def painted(p, n):
    """Is any pixel of rank n's strip of a request's colour (no grey)?"""
    return p.eval("""{ const c = document.querySelectorAll(
        '#ranks canvas')[%d], d = c.getContext('2d').getImageData(0, 0,
        c.width, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4)
            n += d[i + 3] > 128 && Math.max(d[i], d[i + 1], d[i + 2]) -
                Math.min(d[i], d[i + 1], d[i + 2]) > 50;
        n; }""" % n)


def requests(d, p):
    """A request of the ring shows while it runs, its pages on each rank."""
    with d.client() as c:
        ids = [c.submit(tokens=[7 + k, 8, 9] * 200, max_tokens=4000,
                        flags=IGNORE_EOS) for k in range(2)]
        p.wait("document.querySelectorAll('#list li').length === 2")
        want = {f"#{i >> 32}.{i & 0xffffffff}" for i in
                (r["id"] for r in d.ctl_json("requests"))}
        got = p.eval("[...document.querySelectorAll('#list button')].map("
                     "b => b.firstChild.textContent.trim())")
        assert set(got) == want, (got, want)
        p.wait("[...document.querySelectorAll('#list .said')].every(e => "
               "e.textContent.startsWith('600 of 600 prompt tokens'))")
        p.wait("[...document.querySelectorAll('#ranks .num')].every(e => "
               "parseInt(e.textContent) >= 150)")
        assert all(painted(p, n) > 0 for n in range(8))
        bar = p.eval("[...document.querySelector('#list .stack').children]"
                     ".map(i => parseFloat(i.style.width))")
        assert bar[0] == 0 and bar[1] > 0 and sum(bar) < 100, bar
        # One of them alone: what is not its own fades.
        before = painted(p, 0)
        p.eval("document.querySelector('#list button').click()")
        p.wait("document.querySelector('#list button').getAttribute("
               "'aria-pressed') === 'true'")
        assert painted(p, 0) < before
        p.eval("document.querySelector('#list button').click()")
        c.cancel(ids[0])
        p.wait("document.querySelectorAll('#list li').length === 1")
        c.cancel(ids[1])
        p.wait("document.querySelectorAll('#list li').length === 0")
        c.wait(ids)
    p.wait("!document.getElementById('none').hidden")
    assert p.eval("samples.some(s => s.shown[0] > 0)"), "no rate was shown"


def pins(d, p):
    """Pinned pages are shown apart, of the pool and of each rank."""
    text = ",".join(["11,12,13,14"] * 80)       # 320 tokens: 5 pages
    d.ctl_json("cache", "pin", "--tokens", text)
    total = d.ctl_json("cache", "stats")["pages_total"]
    p.wait("/: 5 pinned, 0 used, /.test("
           "document.getElementById('pool-note').textContent)")
    wide = p.eval("[...document.querySelectorAll('#ranks .c-pinned')].map("
                  "e => parseFloat(e.style.width))")
    assert [round(w * total / 100) for w in wide] == [5] * 8, (wide, total)
    assert all(painted(p, n) > 0 for n in range(8)), "drawn as cached"
    d.ctl_json("cache", "unpin", "--all")
    d.ctl_json("cache", "drop")     # else their last request's colour fades
    p.wait("/: 0 used, 0 cached, /.test("
           "document.getElementById('pool-note').textContent)")
    assert not any(painted(p, n) for n in range(8))


def chat(d, p):
    """Typed, sent with Enter, streamed; thoughts apart; text stays text."""
    p.eval("document.getElementById('ask').focus()")
    p.type(QUESTION)
    p.key("Enter", "\r", 13)
    p.wait("document.querySelector('.said-by-model > span') && "
           "document.getElementById('send').textContent === 'Send'")
    said = p.eval("document.querySelector('.said-by-model > span').textContent")
    thought = p.eval("document.querySelector('.said-by-model details span')"
                     "?.textContent ?? ''")
    assert said.strip() and "<think>" not in said + thought, (said, thought)
    assert p.eval("turns.length") == 2
    assert "tokens" in p.eval("document.getElementById('speed').textContent")
    p.eval("document.getElementById('ask').focus()")
    p.type("<b id=bold>bold</b> & <script>window.ran = true</script>")
    p.key("Enter", "\r", 13)
    p.wait("document.querySelectorAll('.said-by-user').length === 2")
    assert p.eval("document.querySelectorAll('.said-by-user')[1].textContent"
                  ).startswith("<b id=bold>bold</b> &")
    assert p.eval("document.getElementById('bold')") is None
    p.wait("document.getElementById('send').textContent === 'Send'")
    return said


def stop(d, p):
    """Escape ends an answer at once, and its request."""
    c = d.ctl_json("status")["counters"]["requests_cancelled"]
    # An answer that would go on: no end token, every one of 4,000.
    p.eval("""window.plain = window.fetch; window.fetch = (u, o) => {
        if (o && o.body) { const b = JSON.parse(o.body);
            b.ignore_eos = true; b.max_tokens = 4000;
            o.body = JSON.stringify(b); }
        return window.plain(u, o); }; 0""")
    p.eval("document.getElementById('anew').click()")
    p.type("The river")
    p.key("Enter", "\r", 13)
    p.wait("document.querySelector('.said-by-model')?.textContent.length > 0")
    assert p.eval("document.getElementById('send').textContent") == "Stop"
    p.key("Escape", code=27)
    p.wait("document.getElementById('send').textContent === 'Send'")
    until("the stopped request is cancelled", lambda: d.ctl_json(
        "status")["counters"]["requests_cancelled"] == c + 1)
    assert p.eval("document.querySelector('.problem')") is None
    p.eval("window.fetch = window.plain; 0")
    p.eval("document.getElementById('anew').click()")


def keyboard(b, d):
    """Tab goes through it in the order of reading, and each is seen."""
    p = b.page(d.url + "/")
    p.wait(f"{READY} && {RANKS} === 8")
    seen = []
    while True:
        p.key("Tab", code=9)
        if p.eval("document.activeElement === document.body"):
            break
        seen.append(p.eval("document.activeElement.id || "
                           "document.activeElement.className"))
        assert len(seen) < 20, seen
        assert p.eval("getComputedStyle(document.activeElement).outlineStyle"
                      ) != "none", seen
    at = [seen.index(x) for x in ("skip", "log", "ask", "send")]
    assert at == sorted(at) and at[0] == 0, seen
    unnamed = p.eval("""[...document.querySelectorAll(
        'button, textarea, input, canvas, section')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() ||
        e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)""")
    assert unnamed == [], unnamed
    p.call("Page.close")


def small_and_dark(b, d):
    p = b.page(d.url + "/", width=390, height=844, touch=True, dark=True)
    p.wait(f"{READY} && {RANKS} === 8")
    assert p.eval("document.documentElement.scrollWidth") <= 390
    wide = p.eval("""[...document.querySelectorAll('body *')].filter(e =>
        e.getBoundingClientRect().right > 391 && e.className !== 'skip')
        .map(e => e.outerHTML.slice(0, 80))""")
    assert wide == [], wide
    back, ink = (p.eval(f"getComputedStyle(document.body).{k}.match(/\\d+/g)"
                        ".slice(0, 3).reduce((a, x) => a + +x, 0)")
                 for k in ("backgroundColor", "color"))
    assert back < 150 and ink > 500, (back, ink)
    # As large as a finger.
    assert p.eval("[...document.querySelectorAll('.button')].filter(e => "
                  "e.offsetHeight > 0 && e.offsetHeight < 36).length") == 0
    assert p.complaints == [], p.complaints
    p.call("Page.close")


def page(b):
    with HttpDaemon(*EIGHT) as d:
        p = b.page(d.url + "/")
        p.wait(f"{READY} && {RANKS} === 8")
        assert "dcp-tiny" in p.eval("document.title")
        requests(d, p)
        pins(d, p)
        chat(d, p)
        stop(d, p)
        keyboard(b, d)
        assert p.complaints == [], p.complaints
        its_policy(p)
        small_and_dark(b, d)
        d.p.terminate()
        p.wait("document.getElementById('state').textContent === 'offline'")
        assert p.eval("getComputedStyle(document.getElementById('pool'))"
                      ".opacity") < "1"


def key(b):
    """Asked for once it is needed; kept by this tab alone."""
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("let me in\n")
        f.flush()
        key_given(b, f.name)


def key_given(b, path):
    with HttpDaemon(*EIGHT, "--api-key-file", path) as d:
        assert d.ask("GET", "/live")[0] == 401
        p = b.page(d.url + "/")
        p.wait("document.getElementById('key').open")
        p.type("wrong")
        p.key("Enter", "\r", 13)
        p.wait("document.getElementById('key').open && "
               "document.getElementById('key-in').value === ''")
        assert p.eval(RANKS) == 0
        p.eval("document.getElementById('key-in').focus()")
        p.type("let me in")
        p.key("Enter", "\r", 13)
        p.wait(f"{READY} && {RANKS} === 8")
        assert p.eval("sessionStorage.getItem('dcpd-key')") == "let me in"
        assert p.eval("localStorage.length + document.cookie.length") == 0
        p.eval("document.querySelector('.tries button').click()")
        p.wait("document.querySelector('.said-by-model > span')"
               "?.textContent.length > 0")
        # Refused requests are in the console of every browser.
        assert [c for c in p.complaints if "401" not in c] == []
        p.call("Page.close")


# --- what it costs ----------------------------------------------------------

class Viewer:
    """A reader of /live; frames counted by a thread of its own."""

    def __init__(self, at, reads=True):
        self.s = socket.socket(socket.AF_UNIX if isinstance(at, str) else
                               socket.AF_INET)
        self.s.connect(at)
        self.s.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        self.n, self.last = 0, b""
        if reads:
            threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with self.s.makefile("rb") as f, contextlib.suppress(OSError):
            for line in f:
                if line.startswith(b"data: "):
                    self.last = line
                    self.n += 1

    def close(self):
        self.s.shutdown(socket.SHUT_RDWR)
        self.s.close()


def sampler():
    with tempfile.TemporaryDirectory() as folder:
        costs(os.path.join(folder, "http"))


def costs(path):
    with HttpDaemon("--engine", "null", "--tp", 8, "--dcp-size", 8,
                    "--null-step-us", 20000, "--max-running-requests", 100,
                    "--http", "127.0.0.1:0,unix:" + path) as d:
        two_frames_later(d)
        assert live(d) == {"viewers": 0, "frames": 0, "dropped": 0}
        three = [Viewer(("127.0.0.1", d.port)) for _ in range(3)]
        until("frames for all", lambda: all(v.n >= 6 for v in three))
        s = live(d)
        # One for all: as many as one of them saw, and what was under way.
        assert s["viewers"] == 3 and s["frames"] <= max(
            v.n for v in three) + 4, (s, [v.n for v in three])
        slow(d, three[0], path)
        too_many(d, 3)
        for v in three:
            v.close()
        until("nobody looks", lambda: live(d)["viewers"] == 0)
        n = live(d)["frames"]
        two_frames_later(d)
        assert live(d)["frames"] == n


def too_many(d, n):
    """64 look; the next one is told so."""
    until("the slow one has left", lambda: live(d)["viewers"] == n)
    more = [Viewer(("127.0.0.1", d.port)) for _ in range(64 - n)]
    until("64 look", lambda: live(d)["viewers"] == 64)
    status, _, body = d.ask("GET", "/live")
    assert status == 503 and b"64 others look" in body, (status, body)
    for v in more:
        v.close()
    until("they have left", lambda: live(d)["viewers"] == n)


def loading():
    """The page is there before the model; its state says why it is empty."""
    d = HttpDaemon("--engine", "null", "--null-step-us", 3000000)
    with open(d.log, "wb") as f:
        d.p = subprocess.Popen([*d.args], stdin=subprocess.DEVNULL, stdout=f,
                               stderr=f, env={**os.environ, **d.env})
    try:
        until("it listens", lambda: "listening on" in d.tail())
        d.port = d.find_port()
        assert b"<title>dcpd" in d.ask("GET", "/")[2]
        v = Viewer(("127.0.0.1", d.port))
        until("it is loading", lambda: b'"state":"loading"' in v.last)
        assert b'"requests":[]' in v.last and b'"pages"' not in v.last
        seen = d.ask("GET", "/metrics")[2].decode()
        assert "\ndcp:ready 0\n" in seen and 'model_name=""' in seen
        until("it is ready", lambda: b'"state":"ready"' in v.last and
              b'"pages":{' in v.last)
        v.close()
    finally:
        d.stop()


def slow(d, good, path):
    """Who does not read gets less, and holds nobody up."""
    with d.client() as c:
        ids = [c.submit(tokens=[n + 1] * 200, max_tokens=100000)
               for n in range(120)]
        # The kernel holds 0.2 MB there; over TCP it would be 2.
        bad = Viewer(path, reads=False)
        until("frames are dropped", lambda: live(d)["dropped"] > 0, 120)
        n = good.n
        until("the others see on", lambda: good.n > n + 3)
        f = json.loads(good.last[6:])
        assert f["n_requests"] == 120 and len(f["requests"]) == 100
        assert f["pages"]["cells"] > 0 and len(f["status"]["ranks"]) == 8
        bad.close()
        for i in ids:
            c.cancel(i)
        c.wait(ids)


# --- pictures ---------------------------------------------------------------

def shots(b):
    """Under the load of a trace; what doc/img has."""
    trace = os.path.join(srcdir, "tests/data/trace/agents-16x12.jsonl")
    with HttpDaemon(*EIGHT) as d:
        looks = {"page": {}, "page-dark": {"dark": True},
                 "page-phone": {"width": 390, "height": 844, "touch": True,
                                "dark": True}}
        pages = {n: b.page(d.url + "/", **{"height": 900, **k})
                 for n, k in looks.items()}
        for p in pages.values():
            p.wait(f"{READY} && {RANKS} === 8")
        threading.Thread(target=d.ctl, args=("bench", "trace", trace, "-C", 4,
                         "-T", 6, "-S", .6), daemon=True).start()
        pages["page"].eval("ask(TRIES['dcp-tiny'][0]); 0")
        time.sleep(25)
        for n, p in pages.items():
            p.call("Page.bringToFront")
            time.sleep(1)
            p.shot(os.path.join(SHOTS, n + ".png"))


def main():
    if not SHOTS:
        sampler()
        loading()
    if not browser.find():
        print("SKIP: no Chromium here (Debian: chromium-headless-shell); "
              "/live was tested, the page was not")
        sys.exit(77)
    with browser.Browser() as b:
        if SHOTS:
            shots(b)
            return
        page(b)
        key(b)
    print("ok")


if __name__ == "__main__":
    main()
