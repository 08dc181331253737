"""The HTTP side of a Daemon started with --http 127.0.0.1:0."""
import http.client
import re


def address(d):
    """(host, port) that it listens on, by its log."""
    with open(d.log, errors="replace") as f:
        m = re.search(r"127\.0\.0\.1:(\d+)", f.read())
    return "127.0.0.1", int(m[1])


def url(d):
    return "http://%s:%d/" % address(d)


def get(d, path, timeout=60, **headers):
    """(status, headers by lower-case name, body)"""
    c = http.client.HTTPConnection(*address(d), timeout=timeout)
    try:
        c.request("GET", path, headers=headers)
        r = c.getresponse()
        return (r.status, {k.lower(): v for k, v in r.getheaders()},
                r.read() if r.status != 200 or path != "/live" else b"")
    finally:
        c.close()
