#!/usr/bin/python3
"""curl, as people use it: the answer, a stream line by line, errors."""
import json
import os
import subprocess
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import eval_rows  # noqa: E402
from httpd import HttpDaemon, events  # noqa: E402
from suite import run  # noqa: E402

MATH = eval_rows.rows("math")[0]
ASK = {"model": "dcp-tiny", "temperature": 0,
       "messages": [{"role": "user", "content": MATH["question"]}]}


def curl(d, path, *args, body=None):
    """(status, what it printed)"""
    if body is not None:
        args += ("-d", json.dumps(body), "-H",
                 "Content-Type: application/json")
    r = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", d.url + path,
                        *args], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    out, status = r.stdout.rsplit("\n", 1)
    return int(status), out


def the_example_of_the_manual(d):
    status, out = curl(d, "/v1/chat/completions", body=ASK)
    assert status == 200
    m = json.loads(out)["choices"][0]["message"]
    assert m["content"].strip() == MATH["answer"]


def a_stream_with_N(d):
    status, out = curl(d, "/v1/chat/completions", "-N",
                       body=dict(ASK, stream=True))
    assert status == 200
    said = events(out.encode() + b"\n")
    assert said[-1][1] == "[DONE]"
    text = "".join(json.loads(x)["choices"][0]["delta"].get("content") or ""
                   for _, x in said[:-1])
    assert text.strip() == MATH["answer"]


def a_large_body_waits_for_100_continue(d):
    status, out = curl(d, "/v1/completions", "-H", "Expect: 100-continue",
                       body={"prompt": "a " * 900, "max_tokens": 1})
    assert status == 200, out


def head_health_and_what_is_not_there(d):
    assert curl(d, "/health")[0] == 200
    assert curl(d, "/health", "-I")[0] == 200
    assert curl(d, "/nothing")[0] == 404
    assert curl(d, "/v1/completions")[0] == 405
    status, out = curl(d, "/v1/completions", "-d", "{")
    assert status == 400 and "JSON" in json.loads(out)["error"]["message"]


if __name__ == "__main__":
    with HttpDaemon() as daemon:
        run(daemon, the_example_of_the_manual, a_stream_with_N,
            a_large_body_waits_for_100_continue,
            head_health_and_what_is_not_there)
