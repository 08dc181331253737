#!/usr/bin/env python3
"""DCP_TOKENIZE: the prompt's tokens come back over the ring and nothing runs.
The text of ids is held against the vocabulary as tokenizer.json has it.
"""
import json
import os
import pty
import subprocess
import sys

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import dcpclient as dcp  # noqa: E402
from daemon import Daemon, binary  # noqa: E402

TINY = os.path.join(srcdir, "models/dcp-tiny")
CHAT = [{"role": "user", "content": "How many pears, \U0001f350?"}]


def vocabulary():
    """Bytes of each id, read here: the alphabet of byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    byte = {chr(b): b for b in plain}
    byte.update({chr(256 + i): b for i, b in enumerate(rest)})
    with open(os.path.join(TINY, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    v = {i: bytes(byte[c] for c in s) for s, i in t["model"]["vocab"].items()}
    special = {a["id"] for a in t["added_tokens"] if a["special"]}
    v.update({a["id"]: a["content"].encode() for a in t["added_tokens"]})
    return v, special


def ask(c, **kw):
    kw["flags"] = kw.get("flags", 0) | dcp.TOKENIZE
    a = c.generate(**kw)
    assert a.error is None, a.error_text
    assert a.tokens == [] and a.text == "" and a.finish == "stop"
    assert a.usage["prompt_tokens"] == len(a.prompt_tokens), a.usage
    assert a.usage["completion_tokens"] == 0
    return a


def text_of(ids, vocab, hide=()):
    return b"".join(vocab[i] for i in ids if i not in hide).decode()


def texts(c, vocab, special):
    text = "The river <|user|> 12 \U0001f350 \u00e9\n\n"
    a = ask(c, text=text)
    user = next(i for i, b in vocab.items() if b == b"<|user|>")
    assert user in a.prompt_tokens
    assert a.prompt_text == text.replace("<|user|>", "")
    assert ask(c, text=text, flags=dcp.SPECIAL_TOKENS).prompt_text == text
    plain = ask(c, text=text, flags=dcp.PLAIN_INPUT)
    assert user not in plain.prompt_tokens and plain.prompt_text == text
    # Ids there and back, special ones shown or not.
    for flags, hide in ((0, special), (dcp.SPECIAL_TOKENS, ())):
        b = ask(c, tokens=a.prompt_tokens, flags=flags)
        assert b.prompt_tokens == a.prompt_tokens
        assert b.prompt_text == text_of(a.prompt_tokens, vocab, hide)
    # What generate sees is the same.
    r = c.generate(text=text, max_tokens=1, flags=dcp.ECHO)
    assert r.prompt_tokens == a.prompt_tokens
    assert ask(c, text="").prompt_tokens == []


def chats(c, vocab):
    a = ask(c, chat=CHAT, flags=dcp.SPECIAL_TOKENS)
    assert a.prompt_text == text_of(a.prompt_tokens, vocab)
    assert a.prompt_text.endswith("<|assistant|><think>"), a.prompt_text
    r = c.generate(chat=CHAT, max_tokens=1, flags=dcp.ECHO)
    assert r.prompt_tokens == a.prompt_tokens
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    b = ask(c, chat=CHAT, options=off, flags=dcp.SPECIAL_TOKENS)
    assert b.prompt_text.endswith("<|assistant|></think>"), b.prompt_text


def long_ones(c, vocab, max_ctx):
    """Many events, longer than the context; no page is needed."""
    ascii_ = sorted(i for i, b in vocab.items() if b.isascii())
    ids = [ascii_[7 * i % 256] for i in range(2 * max_ctx + 999)]
    a = ask(c, tokens=ids, flags=dcp.SPECIAL_TOKENS)
    assert a.prompt_tokens == ids and a.events > 100, a.events
    assert a.prompt_text == text_of(ids, vocab)
    text = "pear " * (max_ctx // 2)
    a = ask(c, text=text)
    assert a.prompt_text == text and len(a.prompt_tokens) >= max_ctx
    # Several at once, read late: the answers wait, bounded, in the daemon.
    rid = [c.submit(tokens=ids[:1000 + i], flags=dcp.TOKENIZE)
           for i in range(20)]
    for i, a in enumerate(c.wait(rid)):
        assert a.prompt_tokens == ids[:1000 + i]


def refused(c):
    for kw, word in (
            (dict(text="x", flags=dcp.TOKENIZE | dcp.LOGPROBS), "logprobs"),
            (dict(text=""), "empty")):
        try:
            c.submit(**kw)
            raise AssertionError(f"{kw} was taken")
        except dcp.DcpError as e:
            assert e.args[0] == 22 and word in str(e), e
    a = c.generate(chat={"role": "user"}, flags=dcp.TOKENIZE)
    assert a.error == -22 and "messages" in a.error_text, a.error_text


def command(d, c, vocab):
    ids = ask(c, text="The river").prompt_tokens
    r = d.ctl("tokenize", "--prompt", "The river")
    assert r.stdout == ",".join(map(str, ids)) + "\n", r
    r = d.ctl("tokenize", "--tokens", r.stdout.strip())
    assert r.stdout == "The river\n", r
    path = os.path.join(d.dir, "m.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(CHAT, f)
    o = d.ctl_json("tokenize", "--messages", path, "--options",
                   '{"chat_template_kwargs": {"enable_thinking": false}}')
    assert o["text"].endswith("</think>") and o["count"] == len(o["tokens"])
    assert o["text"] == text_of(o["tokens"], vocab)
    r = d.ctl("generate", "--prompt", "")
    assert r.stderr == "dcpctl: the input is empty\n", r
    for bad in ((), ("--prompt", "a", "--tokens", "1"),
                ("--prompt", "a", "--options", "{}")):
        assert d.ctl("tokenize", *bad).returncode == 2, bad
    assert d.ctl("tokenize", "--messages", "/nonexistent").returncode == 1


def terminal(d, c, vocab):
    """What would steer a terminal does not reach one; a file gets it all."""
    text = "a\x1b]0;x\x07b\x9b2J\x7f\tc\r\nd\r\u00e9\U0001f350"
    ids = ",".join(map(str, ask(c, text=text).prompt_tokens))
    args = [binary("dcpctl"), "--socket", d.socket, "tokenize", "--tokens",
            ids]
    assert subprocess.run(args, capture_output=True, timeout=60).stdout == \
        text.encode() + b"\n"
    fd, tty = pty.openpty()
    subprocess.run(args, stdout=tty, stderr=tty, timeout=60, check=True)
    os.close(tty)
    # The terminal itself writes newlines as CR LF.
    seen = os.read(fd, 4096).decode().replace("\r\n", "\n")
    assert seen == "a?]0;x?b?2J?\tc\nd?\u00e9\U0001f350\n", repr(seen)
    os.close(fd)


def main():
    vocab, special = vocabulary()
    with Daemon("--model", TINY, "--engine", "null", "--null-pages",
                "64") as d, d.client() as c:
        passes = d.ctl_json("status")["counters"]["prompt_tokens"]
        info = c.info()
        # A pool full of someone else's prompt is in nobody's way.
        hog = c.submit(tokens=[20] * (info["pool_tokens"] // 2),
                       max_tokens=0, flags=dcp.IGNORE_EOS)
        texts_before = ask(c, text="a").prompt_tokens
        c.cancel(hog)
        c.wait([hog])
        assert len(texts_before) == 1 and passes == 0
        texts(c, vocab, special)
        chats(c, vocab)
        before = d.ctl_json("status")["counters"]
        long_ones(c, vocab, info["max_context"])
        refused(c)
        command(d, c, vocab)
        terminal(d, c, vocab)
        after = d.ctl_json("status")["counters"]
        for k in ("prompt_tokens", "steps", "prefix_lookup_tokens"):
            assert before[k] == after[k], (k, before[k], after[k])
        r = d.ctl("check")
        assert r.returncode == 0, r.stderr
    print("texts, chats, long prompts, refusals, dcpctl")


main()
