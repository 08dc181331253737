"""A dcpd of one's own for a test or a measurement, ended with the block.

    with Daemon("--model", DIR, "--tp", 8) as d:
        with d.client() as c: ...

Standard library only. The binaries are found by $DCPD and $DCPCTL, else in the
build tree ($builddir, default the current directory).
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import dcpclient

# A run that is given up ends its daemons and leaves no folder.
if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

BUILD = os.path.abspath(os.environ.get("builddir", "."))


def binary(name):
    env = os.environ.get(name.upper())
    if env:
        return env
    for p in (f"{BUILD}/{name}/{name}", f"{BUILD}/{name}"):
        if os.path.isfile(p) and os.access(p, os.X_OK):
            return p
    found = shutil.which(name)
    if found:
        return found
    raise FileNotFoundError(f"{name}: not in {BUILD}; build it, or set "
                            f"{name.upper()}")


class Daemon:
    def __init__(self, *args, ready=60, env=None):
        self.dir = tempfile.mkdtemp(prefix="dcpd-")
        self.socket = os.path.join(self.dir, "dcpd.sock")
        self.log = os.path.join(self.dir, "log")
        self.args = [binary("dcpd"), *map(str, args), "--socket", self.socket]
        self.ready, self.env = ready, env
        self.p = None

    def __enter__(self):
        t = time.monotonic()
        with open(self.log, "wb") as f:
            self.p = subprocess.Popen(
                self.args, stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                env=dict(os.environ, **self.env) if self.env else None)
        try:
            while self.ctl("status", "-j").returncode != 0:
                if self.p.poll() is not None:
                    raise RuntimeError(f"dcpd ended with status "
                                       f"{self.p.returncode}:\n{self.tail()}")
                if time.monotonic() - t > self.ready:
                    raise RuntimeError(f"not ready in {self.ready} s:\n"
                                       + self.tail())
                time.sleep(0.05)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def tail(self, n=20):
        with open(self.log, errors="replace") as f:
            return "".join(f.readlines()[-n:])

    def ctl(self, *args, timeout=120):
        return subprocess.run([binary("dcpctl"), "--socket", self.socket,
                               *map(str, args)], capture_output=True,
                              text=True, timeout=timeout)

    def ctl_json(self, *args, **kw):
        r = self.ctl(*args, "-j", **kw)
        if r.returncode != 0:
            raise RuntimeError(f"dcpctl {' '.join(map(str, args))}: status "
                               f"{r.returncode}: {r.stderr}{self.tail()}")
        return json.loads(r.stdout)

    def client(self, **kw):
        return dcpclient.Client(self.socket, **kw)

    def stop(self):
        """SIGTERM, then SIGKILL of a daemon that does not go."""
        rc = None
        if self.p is not None:
            if self.p.poll() is None:
                self.p.send_signal(signal.SIGTERM)
            try:
                rc = self.p.wait(40)
            except subprocess.TimeoutExpired:
                self.p.kill()
                rc = self.p.wait()
            self.p = None
        shutil.rmtree(self.dir, ignore_errors=True)
        return rc
