#!/usr/bin/python3
"""Each curl of doc/http.md runs as it is printed, and is answered with JSON or
a stream that ends."""
import json
import os
import re
import subprocess
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import suite  # noqa: E402
from httpd import HttpDaemon, events  # noqa: E402


def commands():
    """Indented paragraphs that begin with curl."""
    with open(os.path.join(SRC, "doc/http.md")) as f:
        for block in re.findall(r"(?:^    .*\n)+", f.read(), re.M):
            if block.startswith("    curl"):
                yield re.sub(r"^    ", "", block, flags=re.M)


def every_curl_of_the_page(d):
    n = 0
    for c in commands():
        assert "127.0.0.1:8000" in c, c
        c = c.replace("127.0.0.1:8000", f"127.0.0.1:{d.port}")
        c = c.replace("curl", "curl -sS --fail-with-body -m 120", 1)
        r = subprocess.run(["sh", "-c", c], capture_output=True)
        assert r.returncode == 0, (c, r.stdout, r.stderr)
        if '"stream": true' in c:
            assert events(r.stdout)[-1] == (None, "[DONE]"), r.stdout
        else:
            json.loads(r.stdout)
        n += 1
    assert n >= 9, n


def every_path_and_key_is_on_the_page(_):
    with open(os.path.join(SRC, "doc/http.md")) as f:
        page = f.read()
    with open(os.path.join(SRC, "plugins/http/routes.c")) as f:
        paths = re.findall(r'\{ "(?:GET|POST)", "([^"]+)"', f.read())
    with open(os.path.join(SRC, "plugins/http/routes.c")) as f:
        others = re.findall(r'\{ "(/[a-z./_-]+)", "', f.read())
    with open(os.path.join(SRC, "plugins/http/format.c")) as f:
        fields = re.findall(r'^\t\{ "(\w+)", [A-Z]', f.read(), re.M)
    assert len(others) >= 9 and len(fields) > 30, (others, fields)
    with open(os.path.join(SRC, "plugins/http/settings.c")) as f:
        keys = re.findall(r'\{ "(\w+)", set_\w+ \}', f.read())
    assert len(paths) > 12 and len(keys) > 7, (paths, keys)
    for name in paths + keys + others + fields:
        if name in ("/get_server_info",):       # an old name
            continue
        assert name in page, f"doc/http.md does not say {name}"


with HttpDaemon() as daemon:
    suite.run(daemon, every_curl_of_the_page,
              every_path_and_key_is_on_the_page)
