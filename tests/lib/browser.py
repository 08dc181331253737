"""A headless Chromium of one's own, driven over its DevTools pipe.

    with Browser() as b:
        page = b.page("http://127.0.0.1:80/", width=1280, height=800)
        page.wait("document.querySelectorAll('#ranks li').length === 8")
        page.shot("x.png")
        assert page.complaints == []

Standard library only. The pipe carries JSON messages that end with a NUL byte;
no port is taken. `complaints` is what a developer would see in red: uncaught
exceptions, console errors, what the Content-Security-Policy blocked.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")


def find():
    """The program, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="dcpd-browser-")
        self.p = None
        self.next, self.answers, self.pages, self.rest = 0, {}, {}, b""

    def __enter__(self):
        to_r, self.to = os.pipe()
        self.back, back_w = os.pipe()

        def fds():      # in the child: commands on 3, answers on 4
            a, b = os.dup(to_r), os.dup(back_w)
            os.dup2(a, 3)
            os.dup2(b, 4)
            for fd in (3, 4):
                os.set_inheritable(fd, True)

        self.p = subprocess.Popen(
            [find(), "--headless", "--remote-debugging-pipe", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars",
             f"--user-data-dir={self.dir}", "about:blank"],
            preexec_fn=fds, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=dict(os.environ, HOME=self.dir))
        os.close(to_r)
        os.close(back_w)
        return self

    def __exit__(self, *_):
        os.close(self.to)
        os.close(self.back)
        try:
            self.p.wait(10)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def call(self, method, session=None, timeout=60, **params):
        self.next += 1
        n = self.next
        m = {"id": n, "method": method, "params": params}
        if session:
            m["sessionId"] = session
        os.write(self.to, json.dumps(m).encode() + b"\0")
        end = time.monotonic() + timeout
        while n not in self.answers:
            self.pump(end - time.monotonic(), method)
        a = self.answers.pop(n)
        if "error" in a:
            raise RuntimeError(f"{method}: {a['error']['message']}")
        return a["result"]

    def pump(self, timeout, what):
        """Take in what comes; TimeoutError if nothing does."""
        if not select.select([self.back], [], [], max(0, timeout))[0]:
            raise TimeoutError(f"the browser does not answer {what}")
        more = os.read(self.back, 1 << 16)
        if not more:
            raise RuntimeError(f"the browser ended: {self.p.wait()}")
        *whole, self.rest = (self.rest + more).split(b"\0")
        for m in map(json.loads, whole):
            if "id" in m:
                self.answers[m["id"]] = m
            elif m.get("sessionId") in self.pages:
                self.pages[m["sessionId"]].event(m["method"], m["params"])

    def page(self, url, **size):
        return Page(self, url, **size)


class Page:
    def __init__(self, b, url, width=1280, height=800, scale=1, dark=False,
                 touch=False, still=True):
        self.b, self.complaints, self.url = b, [], None
        target = b.call("Target.createTarget", url="about:blank")["targetId"]
        self.s = b.call("Target.attachToTarget", targetId=target,
                        flatten=True)["sessionId"]
        b.pages[self.s] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=scale, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme",
             "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion",
             "value": "reduce" if still else "no-preference"}])
        self.url, self.here, self.loaded = url, False, False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            b.pump(60, "with " + url)

    def call(self, method, **params):
        return self.b.call(method, session=self.s, **params)

    def event(self, method, p):
        if method == "Page.loadEventFired":
            self.loaded = self.here     # or it was the blank one's
        elif method == "Page.frameNavigated":
            self.here |= p["frame"]["url"] == self.url
        elif method == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.complaints.append(
                d.get("exception", {}).get("description") or d["text"])
        elif method == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.complaints.append(p["entry"]["text"] + " " +
                                   p["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and p["type"] == "error":
            self.complaints.append(str(p["args"]))

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression,
                      awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{expression}: "
                               f"{r['exceptionDetails']['exception']}")
        return r["result"].get("value")

    def wait(self, expression, timeout=60):
        """Until it is true; what it was then."""
        end = time.monotonic() + timeout
        while True:
            v = self.eval(expression)
            if v:
                return v
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}; the page: "
                                   + str(self.eval("document.body.innerText"))
                                   + f"; complaints: {self.complaints}")
            time.sleep(.05)

    def key(self, name, text=None, code=0, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name,
                      windowsVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def shot(self, path, whole=False):
        r = self.call("Page.captureScreenshot", format="png",
                      captureBeyondViewport=whole)
        with open(path, "wb") as f:
            f.write(base64.b64decode(r["data"]))
