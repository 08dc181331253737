#!/usr/bin/python3
"""What real clients sent is answered in the form that they read.

Each request of tests/data/http goes out again as it was recorded, head and
body, and its answer is held against what the API promises for that request.
"""
import glob
import json
import os
import socket
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
from httpd import HttpDaemon, events  # noqa: E402

KEY = "sesame"
TEXT = str


def send(port, r):
    """(status, content type, body) over a socket of its own."""
    head = f"{r['method']} {r['path']} HTTP/1.1\r\n" + "".join(
        f"{k}: {v.replace('PORT', str(port)).replace('KEY', KEY)}\r\n"
        for k, v in r["headers"] if k.lower() != "connection")
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        s.sendall((head + "Connection: close\r\n\r\n").encode())
        s.sendall(r["body"].encode())
        raw = b"".join(iter(lambda: s.recv(65536), b""))
    while raw.startswith(b"HTTP/1.1 100"):
        raw = raw.split(b"\r\n\r\n", 1)[1]
    head, body = raw.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in
               (line.split(": ", 1) for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunk(body)
    return int(lines[0].split()[1]), headers["content-type"], body


def unchunk(raw):
    out = b""
    while True:
        size, raw = raw.split(b"\r\n", 1)
        n = int(size, 16)
        if n == 0:
            return out
        out, raw = out + raw[:n], raw[n + 2:]


def has(o, **fields):
    """Every field is there and of its type (or equal to its value)."""
    for k, want in fields.items():
        assert k in o, f"no {k} in {o}"
        if isinstance(want, (type, tuple)):
            assert isinstance(o[k], want), f"{k}: {o[k]!r}"
        else:
            assert o[k] == want, f"{k}: {o[k]!r}, not {want!r}"


def check_usage(u):
    has(u, prompt_tokens=int, completion_tokens=int, total_tokens=int)
    has(u["prompt_tokens_details"], cached_tokens=int)
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]


def prompts_of(body):
    p = body["prompt"]
    return 1 if isinstance(p, str) or isinstance(p[0], int) else len(p)


def check_stream(body, said, kind):
    """The chunks of chat or completions; they end with [DONE]."""
    assert said[-1] == (None, "[DONE]"), said[-1]
    chunks = [json.loads(data) for _, data in said[:-1]]
    usage = (body.get("stream_options") or {}).get("include_usage")
    if usage:
        assert chunks[-1]["choices"] == [], chunks[-1]
        check_usage(chunks.pop()["usage"])
    ends = 0
    for c in chunks:
        has(c, id=TEXT, object=kind, created=int, model=TEXT)
        assert len(c["choices"]) == 1, c       # bench_serving reads [0]
        has(c["choices"][0], index=int)
        ends += c["choices"][0]["finish_reason"] is not None
        if (body.get("stream_options") or {}).get("continuous_usage_stats"):
            check_usage(c["usage"])
    assert ends == body.get("n", 1) * (prompts_of(body) if "prompt" in body
                                       else 1)


def chat(body, kind, raw):
    if body.get("stream"):
        return check_stream(body, events(raw), "chat.completion.chunk")
    o = json.loads(raw)
    has(o, id=TEXT, object="chat.completion", created=int, model=TEXT)
    assert len(o["choices"]) == body.get("n", 1)
    check_usage(o["usage"])
    for i, c in enumerate(o["choices"]):
        has(c, index=i)
        assert c["finish_reason"] in ("stop", "length", "tool_calls"), c
        has(c["message"], role="assistant", content=(str, type(None)))
        if body.get("logprobs"):
            for t in c["logprobs"]["content"]:
                has(t, token=TEXT, logprob=float, bytes=list)
                assert len(t["top_logprobs"]) == body["top_logprobs"]
        for call in c["message"].get("tool_calls", []):
            has(call, id=TEXT, type="function")
            json.loads(call["function"]["arguments"])


def completions(body, kind, raw):
    if body.get("stream"):
        return check_stream(body, events(raw), "text_completion")
    o = json.loads(raw)
    has(o, id=TEXT, object="text_completion", created=int, model=TEXT)
    assert len(o["choices"]) == prompts_of(body)
    check_usage(o["usage"])
    for c in o["choices"]:
        has(c, index=int, text=TEXT)
        if body.get("logprobs") is None:
            continue
        lp = c["logprobs"]
        n = len(lp["tokens"])
        assert n == len(lp["token_logprobs"]) == len(lp["top_logprobs"]), lp
        if body.get("echo"):
            prompt = body["prompt"]
            prompt = prompt if isinstance(prompt[0], int) else prompt[0]
            assert n == len(prompt) + body["max_tokens"], n
            assert lp["token_logprobs"][0] is None
        assert all(isinstance(x, float) and x <= 0
                   for x in lp["token_logprobs"][1:])


def responses(body, kind, raw):
    if body.get("stream"):
        said = events(raw)
        parsed = [json.loads(d) for _, d in said]
        assert [n for n, _ in said] == [p["type"] for p in parsed]
        assert [p["sequence_number"] for p in parsed] == \
            list(range(len(parsed)))
        assert parsed[0]["type"] == "response.created"
        assert parsed[-1]["type"] in ("response.completed",
                                      "response.incomplete")
        o = parsed[-1]["response"]
    else:
        o = json.loads(raw)
    has(o, id=TEXT, object="response", status=TEXT, output=list, model=TEXT)
    assert o["output"], o
    has(o["usage"], input_tokens=int, output_tokens=int, total_tokens=int)


def messages(body, kind, raw):
    if body.get("stream"):
        said = [json.loads(d) for _, d in events(raw)]
        assert said[0]["type"] == "message_start"
        assert said[-1]["type"] == "message_stop"
        has(said[-2]["usage"], output_tokens=int)
        assert said[-2]["delta"]["stop_reason"]
        return
    o = json.loads(raw)
    has(o, id=TEXT, type="message", role="assistant", content=list)
    assert o["stop_reason"] in ("end_turn", "max_tokens", "tool_use",
                                "stop_sequence"), o
    has(o["usage"], input_tokens=int, output_tokens=int)


def count_tokens(body, kind, raw):
    assert json.loads(raw)["input_tokens"] > 10


def models(body, kind, raw):
    o = json.loads(raw)
    has(o["data"][0], id="dcp-tiny", object="model", max_model_len=int)


CHECKS = {"/v1/chat/completions": chat, "/v1/completions": completions,
          "/v1/responses": responses, "/v1/messages": messages,
          "/v1/messages/count_tokens": count_tokens, "/v1/models": models,
          "/health": lambda *_: None}


def main():
    failed = n = 0
    with HttpDaemon("--served-model-name", "dcp-tiny") as d:
        for path in sorted(glob.glob(SRC + "/tests/data/http/*.json")):
            with open(path) as f:
                rec = json.load(f)
            for r in rec["requests"]:
                n += 1
                what = f"{rec['client']} {rec['version']}: {r['name']}"
                try:
                    status, kind, raw = send(d.port, r)
                    assert status == 200, f"{status}: {raw[:600]}"
                    body = json.loads(r["body"]) if r["body"] else {}
                    CHECKS[r["path"].split("?")[0]](body, kind, raw)
                    print("ok:", what)
                except (AssertionError, KeyError, ValueError) as e:
                    failed += 1
                    print(f"FAIL: {what}: {type(e).__name__}: {e}")
    print(f"{n} requests, {failed} failed")
    assert n >= 30, "the recordings are gone"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
