"""A daemon of one's own that serves HTTP on a free port of the loopback.

    with HttpDaemon("--tp", 4) as d:
        d.url                            # "http://127.0.0.1:41234"
        status, headers, body = d.ask("POST", "/v1/completions", {...})

The model is dcp-tiny unless --model or --engine is among the arguments.
Standard library only.
"""
import http.client
import json
import os
import re
import time

from daemon import BUILD, Daemon

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
TINY = os.path.join(SRC, "models", "dcp-tiny")


class HttpDaemon(Daemon):
    def __init__(self, *args, **kw):
        env = dict(kw.pop("env", None) or {})
        env.setdefault("DCPD_PLUGIN_DIR", os.environ.get(
            "DCPD_PLUGIN_DIR", os.path.join(BUILD, "plugins", ".libs")))
        if not {"--model", "--model-path", "--engine"} & set(args):
            args = ("--model", TINY, "--kv-bytes-per-rank", "64MiB", *args)
        if kw.pop("http", True) and "--http" not in args and \
                "--port" not in args:
            args += ("--http", "127.0.0.1:0")
        super().__init__(*args, env=env, **kw)

    def __enter__(self):
        super().__enter__()
        try:
            self.port = self.find_port()
            self.url = f"http://127.0.0.1:{self.port}"
            end = time.monotonic() + self.ready
            while self.ask("GET", "/health")[0] != 200 or \
                    self.ask("GET", "/v1/models")[0] == 503:
                assert time.monotonic() < end, self.tail()
                time.sleep(0.02)
        except BaseException:
            self.stop()
            raise
        return self

    def find_port(self):
        with open(self.log, errors="replace") as f:
            said = re.search(r"listening on \S*:(\d+)", f.read())
        assert said, self.tail()
        return int(said.group(1))

    def ask(self, method, path, body=None, headers=(), timeout=120):
        """(status, headers as a dict of lower-case names, body as bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, body if body is None or
                      isinstance(body, (str, bytes)) else json.dumps(body),
                      dict(headers))
            r = c.getresponse()
            return (r.status, {k.lower(): v for k, v in r.getheaders()},
                    r.read())
        finally:
            c.close()

    def post(self, path, body, status=200, **kw):
        """The answer as JSON; its status must be the one given."""
        got, _, raw = self.ask("POST", path, body, **kw)
        assert got == status, f"{path}: {got}, not {status}: {raw[:2000]}"
        return json.loads(raw)

    def stream(self, path, body, **kw):
        """[(event name or None, data)] of a whole stream."""
        got, headers, raw = self.ask("POST", path, dict(body, stream=True),
                                     **kw)
        assert got == 200, f"{path}: {got}: {raw[:2000]}"
        assert headers["content-type"].startswith("text/event-stream")
        return events(raw)


def events(raw):
    """Server-sent events, as the WHATWG's standard reads them."""
    out, name, data = [], None, []
    for line in raw.decode().split("\n"):
        line = line.removesuffix("\r")
        if line == "":
            if data:
                out.append((name, "\n".join(data)))
            name, data = None, []
        elif line.startswith("event:"):
            name = line[6:].removeprefix(" ")
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        else:
            assert line.startswith(":") or line.startswith("id:") or \
                line.startswith("retry:"), line
    assert not data, "the stream ends within an event"
    return out


def tokenizer_folder(parent):
    """dcp-tiny's tokenizer as transformers reads it, in a folder in parent."""
    path = os.path.join(parent, "tokenizer")
    os.mkdir(path)
    os.symlink(os.path.join(TINY, "tokenizer.json"), path + "/tokenizer.json")
    with open(path + "/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast",
                   "eos_token": "<|endoftext|>"}, f)
    return path
