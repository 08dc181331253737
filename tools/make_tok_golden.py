#!/usr/bin/env python3
"""Golden token ids for tests/unit/t_tokenizer.c from huggingface/tokenizers.

    make_tok_golden.py TREE     (needs: pip install tokenizers)

writes into TREE/tests/data/tok:
  random.json.xz     2,000 seeded random strings, and their ids by the small
                     GLM-like and DeepSeek-like tokenizers and dcp-tiny's
  runs.json.xz       the same for runs: one letter or line end 300 times and
                     more, where merges have the longest way to go
  tok-added/         a tokenizer whose added tokens use every flag (lstrip,
                     rstrip, single_word, normalized) and ignore_merges, with
                     golden.json
Characters are those of Unicode 14, as far as PCRE2 10.42 knows them.
"""
import json
import lzma
import os
import random
import sys
import unicodedata

import tokenizers
from tokenizers import Tokenizer

SPACES = " \t\n\r\v\f\x1c\x85\xa0\u1680\u180e\u2000\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
MARKS = ["<|user|>", "<think>", "</think>", "<tool_call>", "[gMASK]", "<sop>",
         "<\uff5cUser\uff5c>", "\uff5cDSML\uff5c", "<|", "|>", "'s", "'ll", "'RE", "\r\n"]
WORDS = ["the", "there", "Hello", "world", "return", "in", "index", "12345", "3.14", "\u65e5\u672c\u8a9e",
         "\u30c6\u30b9\u30c8", "caf\u00e9", "e\u0301", "\u017f", "'\u017f", "\u2167", "\u00bd", "\u0661\u0662", "don't", "_x", "$a"]


def random_char(r):
    u = r.random()
    if u < .35:
        return chr(r.randrange(0x20, 0x7f))
    if u < .5:
        return r.choice(SPACES)
    while True:
        top = 0x250 if u < .65 else 0x3100 if u < .8 else 0x10000 if u < .93 else 0x20000
        c = chr(r.randrange(0x80, top))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            return c


def random_text(r):
    out = []
    for _ in range(r.randrange(1, 14)):
        u = r.random()
        if u < .2:
            out.append(r.choice(WORDS))
        elif u < .28:
            out.append(r.choice(MARKS))
        elif u < .36:
            out.append(random_char(r) * r.randrange(2, 9))
        else:
            out.append(random_char(r))
    return "".join(out)


def ids(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def cases_of(tree, name, texts):
    names = {"tok-glm": "tests/data/tok/tok-glm", "tok-ds": "tests/data/tok/tok-ds",
             "dcp-tiny": "models/dcp-tiny"}
    toks = {k: Tokenizer.from_file(f"{tree}/{v}/tokenizer.json")
            for k, v in names.items()}
    data = {"tokenizers": tokenizers.__version__, "folders": names,
            "texts": texts,
            "ids": {k: [ids(t, s) for s in texts] for k, t in toks.items()}}
    raw = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    with open(f"{tree}/tests/data/tok/{name}", "wb") as f:
        f.write(lzma.compress(raw.encode(), preset=9 | lzma.PRESET_EXTREME))


def random_cases(tree):
    r = random.Random(20)
    cases_of(tree, "random.json.xz", [random_text(r) for _ in range(2000)])


def run_cases(tree):
    units = ["a", "e", "A", "l", "\u00e9", "\u017f", "1", " ", "\n", "\r\n",
             " \n", "\t", "\u180e", "'", "-", "=", ".", "\u65e5", "ab", "the ",
             "\U0001f600", "<"]
    cases_of(tree, "runs.json.xz",
             [x + u * n + y for u in units for n in (299, 300, 301, 1024)
              for x, y in (("", ""), ("x", "y"))])


def added(i, content, **flags):
    t = {"id": i, "content": content, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": False}
    t.update(flags)
    return t


def added_cases(tree):
    base = json.load(open(f"{tree}/tests/data/tok/tok-glm/tokenizer.json"))
    model = base["model"]
    n = len(model["vocab"])
    model["ignore_merges"] = True
    model["merges"] = [" ".join(m) for m in model["merges"]]
    model["vocab"]["hello"] = n         # no merge makes it
    model["vocab"]["\u0120zq"] = n + 1
    base["added_tokens"] = [
        added(n + 2, "<left>", lstrip=True),
        added(n + 3, "<right>", rstrip=True),
        added(n + 4, "<both>", lstrip=True, rstrip=True),
        added(n + 5, "word", single_word=True),
        added(n + 6, "<norm>", normalized=True),
        added(n + 7, "<normal>", normalized=True),
        added(n + 8, "<a>"), added(n + 9, "<a><b>"), added(n + 10, "<b>"),
        added(n + 11, "m<a>"), added(n + 12, "\u00e9t\u00e9", special=True),
        added(n + 13, "a b", normalized=True, single_word=True),
    ]
    folder = f"{tree}/tests/data/tok/tok-added"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/tokenizer.json"
    json.dump(base, open(path, "w"), ensure_ascii=False, indent=0)
    tok = Tokenizer.from_file(path)
    bits = ["<left>", "<right>", "<both>", "word", "<norm>", "<normal>", "<a>",
            "<a><b>", "<b>", "m<a>", "\u00e9t\u00e9", "a b", " ", "  ", "\n", "\u3000", "\u180e", "x",
            "hello", " zq", " hello", "words", "_", "-", "\u0301", "7", "\u2160", "\u24b6",
            "\u200d", "the", "<no", "rm>", "<"]
    r = random.Random(3)
    texts = bits + ["".join(r.choice(bits) for _ in range(r.randrange(2, 9)))
                    for _ in range(600)]
    cases = []
    for s in texts:
        i = ids(tok, s)
        cases.append({"text": s, "ids": i,
                      "decoded": tok.decode(i, skip_special_tokens=False),
                      "decoded_skip": tok.decode(i)})
    json.dump({"tokenizers": tokenizers.__version__, "cases": cases},
              open(f"{folder}/golden.json", "w"), ensure_ascii=False, indent=0)


if __name__ == "__main__":
    random_cases(sys.argv[1])
    run_cases(sys.argv[1])
    added_cases(sys.argv[1])
