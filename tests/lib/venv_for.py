"""Packages from PyPI for a test, pinned, installed once per build folder.

    import venv_for                       # at the top, before what it needs
    venv_for.use("clients")               # goes on under the venv's python
    import openai

The sets are tests/lib/requirements-NAME.txt, every package with its version,
so that nothing is resolved and nothing moves. They lie in the build folder, or
in $DCPD_TEST_VENVS where several build folders shall share them.

When PyPI cannot be reached at all, the test is skipped with that reason; any
other failure to install is a failure of the test.
"""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

LIB = os.path.dirname(os.path.abspath(__file__))
BASE = "/usr/bin/python3"  # Debian's, whatever runs the test
PROBE = "six==1.17.0"           # 11 KB: is there a PyPI?
SKIP = 77


def requirements(name):
    return os.path.join(LIB, f"requirements-{name}.txt")


def place(name):
    build = os.path.abspath(os.environ.get("builddir", "."))
    root = os.environ.get("DCPD_TEST_VENVS") or os.path.join(build, "tests",
                                                             "venv")
    return os.path.join(root, name)


def run(*args):
    return subprocess.run(args, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def pip(python, *args):
    return run(python, "-m", "pip", "--disable-pip-version-check",
               "--no-input", *args)


def reachable(python):
    with tempfile.TemporaryDirectory() as d:
        return pip(python, "download", "-q", "--no-deps", "--no-cache-dir",
                   "-d", d, PROBE).returncode == 0


def give_up(name, what, python):
    print(f"{what.stdout[-4000:]}\n", file=sys.stderr)
    if python and not reachable(python):
        print(f"SKIP: PyPI cannot be reached, and the packages of "
              f"{requirements(name)} are not installed yet")
        sys.exit(SKIP)
    sys.exit(f"FAIL: could not install {requirements(name)}; see above")


def install(name, at):
    """The path of its python; installs what is not there yet."""
    with open(requirements(name), "rb") as f:
        stamp = hashlib.sha256(f.read()).hexdigest()
    python, mark = os.path.join(at, "bin", "python"), at + ".installed"
    os.makedirs(os.path.dirname(at), exist_ok=True)
    with open(at + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if os.path.exists(mark) and open(mark).read() == stamp:
            return python
        shutil.rmtree(at, ignore_errors=True)
        r = run(BASE, "-m", "venv", at)
        if r.returncode != 0:
            give_up(name, r, None)
        r = pip(python, "install", "-q", "--no-deps", "-r",
                requirements(name))
        if r.returncode != 0:
            give_up(name, r, python)
        with open(mark, "w") as f:
            f.write(stamp)
    return python


def use(name):
    """Run the rest of this program under the venv's python."""
    at = place(name)
    if os.path.realpath(sys.prefix) == os.path.realpath(at):
        return
    python = install(name, at)
    os.execv(python, [python, *sys.argv])


if __name__ == "__main__":  # venv_for.py NAME: install it and say where
    print(install(sys.argv[1], place(sys.argv[1])))
