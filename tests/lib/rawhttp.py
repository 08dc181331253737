"""HTTP by hand, over a raw socket, for what no client library would do.

    s = Raw(port)
    s.send(request("POST", "/v1/completions", {...}))
    status, headers, body = s.answer()

Standard library only. An answer's body may be left unread: head() alone.
"""
import json
import socket


def request(method, path, body=None, headers=(), version="1.1"):
    raw = b"" if body is None else body if isinstance(body, bytes) else \
        json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: test"]
    lines += [f"{k}: {v}" for k, v in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(raw)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


class Closed(Exception):
    pass


class Raw:
    def __init__(self, port, timeout=60, rcvbuf=None, path=None):
        if path:
            self.s = socket.socket(socket.AF_UNIX)
            self.s.connect(path)
        else:
            self.s = socket.socket()
            if rcvbuf:
                self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            self.s.connect(("127.0.0.1", port))
        self.s.settimeout(timeout)
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.s.close()

    def reset(self):
        """Gone as a killed process is: RST, not FIN."""
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                          b"\1\0\0\0\0\0\0\0")
        self.s.close()

    def send(self, data):
        self.s.sendall(data)

    def more(self):
        try:
            data = self.s.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(f"closed with {self.buf[-200:]!r} unread")
        self.buf += data

    def until(self, what):
        while what not in self.buf:
            self.more()
        got, self.buf = self.buf.split(what, 1)
        return got

    def take(self, n):
        while len(self.buf) < n:
            self.more()
        got, self.buf = self.buf[:n], self.buf[n:]
        return got

    def head(self):
        lines = self.until(b"\r\n\r\n").decode().split("\r\n")
        assert lines[0].startswith("HTTP/1."), lines[0]
        headers = {k.lower(): v for k, v in
                   (line.split(": ", 1) for line in lines[1:])}
        return int(lines[0].split()[1]), headers

    def chunk(self):
        n = int(self.until(b"\r\n"), 16)
        data = self.take(n)
        assert self.take(2) == b"\r\n"
        return data

    def answer(self, no_body=False):
        status, headers = self.head()
        if no_body or status == 204:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        elif "content-length" in headers:
            body = self.take(int(headers["content-length"]))
        else:
            body = self.rest()
        return status, headers, body

    def rest(self):
        try:
            while True:
                self.more()
        except Closed:
            got, self.buf = self.buf, b""
            return got
