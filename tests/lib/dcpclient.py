"""libdcpclient for Python tests and tools: a ctypes binding of dcpclient.h.

    c = Client("/run/dcpd/dcpd.sock")
    r = c.generate(tokens=[1, 2, 3], max_tokens=8)   # one request, to its end
    a = c.submit(text="Once", max_tokens=8)          # or many at once
    for ev in c.events(): ...

Standard library only. One thread per Client. The library is found by
$DCPCLIENT_LIB, else in the build tree, else by the linker's search.
"""
import ctypes as C
import glob
import json
import os

INPUT_TEXT, INPUT_CHAT, INPUT_TOKENS = 1, 2, 3
(IGNORE_EOS, LOGPROBS, ECHO, SPECIAL_TOKENS, PLAIN_INPUT, SEED,
 TEMPERATURE, TOKENIZE, BEGIN, FIT) = (1 << i for i in range(10))
EV_DELTA, EV_DONE, EV_ERROR, EV_BEGIN = 1, 2, 3, 4
CONTENT, REASONING, TOOL_NAME, TOOL_ARGS, PROMPT = range(5)
FINISH = ["", "stop", "length", "tool_calls", "abort"]


class LogitBias(C.Structure):
    _fields_ = [("token", C.c_uint32), ("bias", C.c_float)]


class Request(C.Structure):
    _fields_ = [
        ("size", C.c_uint32), ("input", C.c_uint32), ("flags", C.c_uint32),
        ("max_tokens", C.c_uint32), ("data", C.c_void_p), ("len", C.c_size_t),
        ("user_data", C.c_uint64), ("temperature", C.c_float),
        ("top_p", C.c_float), ("min_p", C.c_float),
        ("repetition_penalty", C.c_float), ("presence_penalty", C.c_float),
        ("frequency_penalty", C.c_float), ("top_k", C.c_int32),
        ("min_tokens", C.c_uint32), ("top_logprobs", C.c_uint32),
        ("priority", C.c_int32), ("seed", C.c_uint64),
        ("deadline_ms", C.c_uint32), ("n_stop", C.c_uint32),
        ("n_stop_ids", C.c_uint32), ("n_logit_bias", C.c_uint32),
        ("stop", C.POINTER(C.c_char_p)), ("stop_ids", C.POINTER(C.c_uint32)),
        ("logit_bias", C.POINTER(LogitBias)), ("options", C.c_char_p)]


class Logprob(C.Structure):
    _fields_ = [("token", C.c_uint32), ("logprob", C.c_float)]


class TokenLogprobs(C.Structure):
    _fields_ = [("chosen", Logprob), ("n_top", C.c_uint32),
                ("top", C.POINTER(Logprob))]


class Usage(C.Structure):
    _fields_ = [("prompt_tokens", C.c_uint32), ("cached_tokens", C.c_uint32),
                ("completion_tokens", C.c_uint32),
                ("reasoning_tokens", C.c_uint32)]


class RawEvent(C.Structure):
    _fields_ = [
        ("size", C.c_uint32), ("type", C.c_uint32), ("request", C.c_uint64),
        ("user_data", C.c_uint64), ("seq", C.c_uint64),
        ("channel", C.c_uint32), ("call", C.c_uint32),
        ("text", C.c_void_p), ("text_len", C.c_size_t),
        ("tokens", C.POINTER(C.c_uint32)), ("n_tokens", C.c_uint32),
        ("n_logprobs", C.c_uint32), ("logprobs", C.POINTER(TokenLogprobs)),
        ("finish", C.c_uint32), ("error", C.c_int32), ("usage", Usage)]


class Event:
    """A copy of one event; .logprobs is [(id, logprob, [(id, logprob)])]."""

    def __init__(self, e):
        self.type, self.request, self.seq = e.type, e.request, e.seq
        self.channel, self.call = e.channel, e.call
        self.user_data = e.user_data
        self.text = C.string_at(e.text, e.text_len).decode() \
            if e.text_len else ""
        self.tokens = e.tokens[:e.n_tokens] if e.n_tokens else []
        self.logprobs = [
            (p.chosen.token, p.chosen.logprob,
             [(t.token, t.logprob) for t in p.top[:p.n_top]]
             if p.n_top else [])
            for p in (e.logprobs[:e.n_logprobs] if e.n_logprobs else [])]
        self.finish, self.error = FINISH[e.finish], e.error
        self.usage = {n: getattr(e.usage, n) for n, _ in Usage._fields_}


class DcpError(OSError):
    pass


class Answer:
    """What one request gave."""

    def __init__(self):
        self.tokens, self.text, self.reasoning = [], "", ""
        self.calls, self.logprobs, self.prompt_logprobs = [], [], []
        self.prompt_tokens, self.prompt_text = [], ""
        self.finish = self.error = self.error_text = None
        self.usage, self.events = {}, 0

    def add(self, ev):
        self.events += 1
        if ev.type == EV_ERROR:
            self.error, self.error_text = ev.error, ev.text
        elif ev.type == EV_DONE:
            self.finish = ev.finish
        if ev.type != EV_DELTA:
            self.usage = ev.usage
            return
        if ev.channel == PROMPT:
            self.prompt_logprobs += ev.logprobs
            self.prompt_tokens += ev.tokens
            self.prompt_text += ev.text
            return
        self.tokens += ev.tokens
        self.logprobs += ev.logprobs
        if ev.channel == CONTENT:
            self.text += ev.text
        elif ev.channel == REASONING:
            self.reasoning += ev.text
        elif ev.channel == TOOL_NAME:
            while len(self.calls) <= ev.call:
                self.calls.append(["", ""])
            self.calls[ev.call][0] += ev.text
        elif ev.channel == TOOL_ARGS:
            self.calls[ev.call][1] += ev.text


def find_library():
    named = os.environ.get("DCPCLIENT_LIB")
    if named:
        return named
    build = os.environ.get("builddir", ".")
    for d in (".libs", "libdcpclient/.libs"):
        found = sorted(glob.glob(os.path.join(build, d, "libdcpclient.so*")))
        if found:
            return os.path.abspath(found[0])
    return "libdcpclient.so.0"


def load(path=None):
    lib = C.CDLL(path or find_library(), use_errno=True)
    p = C.c_void_p
    lib.dcp_connect.argtypes = [C.c_char_p, C.c_int, C.POINTER(p)]
    lib.dcp_submit.argtypes = [p, C.POINTER(Request), C.POINTER(C.c_uint64)]
    lib.dcp_cancel.argtypes = [p, C.c_uint64]
    lib.dcp_fd.argtypes = [p]
    lib.dcp_next.argtypes = [p, C.c_int, C.POINTER(C.POINTER(RawEvent))]
    lib.dcp_event_release.argtypes = [p, C.POINTER(RawEvent)]
    lib.dcp_event_release.restype = None
    lib.dcp_server_info.argtypes = [p, C.POINTER(C.c_void_p)]
    lib.dcp_error_text.restype = C.c_char_p
    lib.dcp_close.argtypes = [p]
    lib.dcp_close.restype = None
    return lib


class Client:
    def __init__(self, path=None, timeout=30.0, lib=None):
        self.lib = load(lib)
        self.c = C.c_void_p()
        self.live = {}
        self.check(self.lib.dcp_connect(
            path.encode() if path else None, int(timeout * 1000),
            C.byref(self.c)), "connect")

    def check(self, rc, what):
        if rc < 0:
            text = self.lib.dcp_error_text().decode()
            raise DcpError(-rc, f"{what}: {text or os.strerror(-rc)}")

    def submit(self, text=None, chat=None, tokens=None, max_tokens=0, flags=0,
               stop=(), stop_ids=(), logit_bias=None, options=None, **fields):
        """Returns the id. `fields` are dcp_request's scalars by name;
        a temperature or a seed also sets its flag."""
        r = Request(size=C.sizeof(Request), max_tokens=max_tokens)
        if tokens is not None:
            data = (C.c_uint32 * len(tokens))(*tokens)
            r.input, r.len = INPUT_TOKENS, 4 * len(tokens)
        else:
            raw = (text if text is not None else json.dumps(chat)).encode()
            data = C.create_string_buffer(raw, len(raw) + 1)
            r.input = INPUT_TEXT if text is not None else INPUT_CHAT
            r.len = len(raw)
        r.data = C.cast(data, C.c_void_p)
        for k, v in fields.items():
            if not hasattr(r, k):
                raise TypeError(f"dcp_request has no {k}")
            setattr(r, k, v)
        r.flags = flags | (TEMPERATURE if "temperature" in fields else 0) | \
            (SEED if "seed" in fields else 0)
        keep = [data]                  # alive until dcp_submit has copied
        if stop:
            keep.append((C.c_char_p * len(stop))(*[s.encode() for s in stop]))
            r.stop, r.n_stop = keep[-1], len(stop)
        if stop_ids:
            keep.append((C.c_uint32 * len(stop_ids))(*stop_ids))
            r.stop_ids, r.n_stop_ids = keep[-1], len(stop_ids)
        if logit_bias:
            keep.append((LogitBias * len(logit_bias))(*logit_bias.items()))
            r.logit_bias, r.n_logit_bias = keep[-1], len(logit_bias)
        if options is not None:
            r.options = json.dumps(options).encode()
        rid = C.c_uint64()
        self.check(self.lib.dcp_submit(self.c, C.byref(r), C.byref(rid)),
                   "submit")
        self.live[rid.value] = Answer()
        return rid.value

    def next(self, timeout=120.0):
        """The next event, or None when none came in time."""
        e = C.POINTER(RawEvent)()
        rc = self.lib.dcp_next(self.c, int(timeout * 1000), C.byref(e))
        if rc == -11:
            return None
        self.check(rc, "next")
        ev = Event(e.contents)
        self.lib.dcp_event_release(self.c, e)
        return ev

    def wait(self, ids, timeout=300.0):
        """Run until all of ids have ended: their answers, in order. Events
        of other requests are kept for a later wait."""
        todo = {i for i in ids if self.running(self.live[i])}
        while todo:
            ev = self.next(timeout)
            if ev is None:
                raise DcpError(110, f"no event in {timeout} s, {len(todo)} "
                               "requests still run")
            self.live[ev.request].add(ev)
            if ev.type in (EV_DONE, EV_ERROR):
                todo.discard(ev.request)
        return [self.live.pop(i) for i in ids]

    @staticmethod
    def running(a):
        return a.finish is None and a.error is None

    def generate(self, timeout=300.0, **request):
        return self.wait([self.submit(**request)], timeout)[0]

    def batch(self, requests, concurrency, timeout=600.0, done=None):
        """All of requests (dicts for submit), at most `concurrency` at once;
        their answers, in order. done(index, answer) is called at each end."""
        answers, at, todo = [None] * len(requests), {}, list(
            enumerate(requests))[::-1]
        while todo or at:
            while todo and len(at) < concurrency:
                i, r = todo.pop()
                at[self.submit(**r)] = i
            ev = self.next(timeout)
            if ev is None:
                raise DcpError(110, f"no event in {timeout} s")
            a = self.live[ev.request]
            a.add(ev)
            if ev.type in (EV_DONE, EV_ERROR):
                i = at.pop(ev.request)
                answers[i] = self.live.pop(ev.request)
                if done:
                    done(i, answers[i])
        return answers

    def cancel(self, rid):
        self.check(self.lib.dcp_cancel(self.c, rid), "cancel")

    def info(self):
        s = C.c_void_p()
        self.check(self.lib.dcp_server_info(self.c, C.byref(s)), "info")
        text = C.string_at(s.value).decode()
        C.CDLL(None).free(s)
        return json.loads(text)

    def close(self):
        if self.c:
            self.lib.dcp_close(self.c)
            self.c = C.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
