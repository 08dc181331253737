"""Runs functions as tests: each is named for what must hold."""
import os
import sys
import textwrap
import time
import traceback


def run(arg, *tests):
    """Each of tests with arg; the names among the program's arguments, if
    there are any. Ends the program: 1 if one failed."""
    wanted = set(sys.argv[1:])
    failed = []
    for t in tests:
        if wanted and t.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            t(arg)
        except Exception:                   # the others shall run
            failed.append(t.__name__)
            print(f"FAIL: {t.__name__}\n{traceback.format_exc()}", flush=True)
            continue
        print(f"ok: {t.__name__} ({time.monotonic() - began:.1f} s)",
              flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


def manual(word, **replace):
    """The indented lines of doc/clients.md that begin with word, as they
    stand there, but for what names another address or model."""
    src = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    with open(os.path.join(src, "doc", "clients.md")) as f:
        text = f.read().replace("http://127.0.0.1:8000", replace["url"])
    for block in text.split("\n\n    " + word)[1:]:
        lines = []
        for line in ("    " + word + block).splitlines():
            if line and not line.startswith("    "):
                break
            lines.append(line)
        return textwrap.dedent("\n".join(lines))
    raise AssertionError(f"doc/clients.md has no lines that begin {word!r}")


def until(true, what, seconds=60):
    """Waits for something; `what` says what is wrong if it never comes."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}, {seconds} s later"
        time.sleep(0.05)
