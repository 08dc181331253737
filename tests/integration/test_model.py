#!/usr/bin/python3
"""A model through the daemon: what a client sees over the ring.

Real daemons with models/dcp-tiny on the CPU, f32 rows. Expected values come
from models/dcp-tiny/reference.json and the numpy reference.
"""
import math
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403
import dcpclient as D  # noqa: E402
from daemon import Daemon  # noqa: E402

CP = ["--attn-cp-size", 8, "--enable-cp-decode-attn-tp"]
LAYOUTS = {
    "tp1": ["--tp", 1],
    "tp8+dcp8": ["--tp", 8, "--dcp-size", 8],
    "tp8+cp8+dcp8 zigzag": ["--tp", 8, "--dcp-size", 8, *CP,
                            "--cp-strategy", "zigzag"],
}
TOKEN_BYTES = 576 * 4 * 4 + 128 * 4 * 3     # f32: 4 layers, 3 with an index
GREEDY = dict(temperature=0.0)


def daemon(*flags, kv="8MiB", context=1024):
    return Daemon("--model", TINY, "--kv-cache-dtype", "f32",
                  "--kv-bytes-per-rank", kv, "--max-context", context, *flags)


class EveryLayout(unittest.TestCase):
    """The same questions to a daemon of each layout."""

    def setUp(self):
        self.ref = read_json(TINY, "reference.json")

    def test_greedy_tokens_are_the_references(self):
        for name, flags in LAYOUTS.items():
            with self.subTest(name), daemon(*flags, kv="24MiB") as d, \
                    d.client() as c:
                got = c.batch([dict(tokens=e["ids"], **GREEDY,
                                    max_tokens=len(e["greedy"]))
                               for e in self.ref], 8)
                for e, a in zip(self.ref, got):
                    self.assertEqual(a.error_text, None)
                    want = [t for t in e["greedy"] if t not in (0, 6, 8)]
                    self.assertEqual(
                        [t for t in a.tokens if t not in (0, 6, 8)], want,
                        f"{e['name']} in {name}")
                    self.assertEqual(a.usage["prompt_tokens"],
                                     len(e["ids"]))

    # An empty selection, and the seam at the end of the context.
    def test_shortest_and_longest_prompts(self):
        """1 to 3 tokens, and max_context - 1, max_context, one above."""
        ids = (self.ref[8]["ids"] + self.ref[9]["ids"])[:513]
        base = None
        for name, flags in LAYOUTS.items():
            with self.subTest(name), daemon(*flags, context=512) as d, \
                    d.client() as c:
                got = [c.generate(tokens=ids[:n], max_tokens=8, **GREEDY,
                                  flags=D.IGNORE_EOS).tokens
                       for n in (1, 2, 3, 503, 504)]
                self.assertEqual([len(g) for g in got], [8] * 5)
                # As long as the context: no room for one more token.
                for n, m in ((512, 1), (513, 1), (513, 0), (505, 8)):
                    a = self.refused(c, tokens=ids[:n], max_tokens=m)
                    self.assertIn("512", a)
                for m in (1, 0):       # 0: to the end of the context
                    a = c.generate(tokens=ids[:511], max_tokens=m, **GREEDY,
                                   flags=D.IGNORE_EOS)
                    self.assertEqual((len(a.tokens), a.finish),
                                     (1, "length"))
                    got.append(a.tokens)
                base = base or got
                self.assertEqual(got, base)

    def refused(self, c, **request):
        """The text of a refusal, by the submit or by an ERROR event."""
        try:
            a = c.generate(**request)
        except D.DcpError as e:
            return str(e)
        self.assertIsNotNone(a.error, "was served")
        return a.error_text


class Capacity(unittest.TestCase):
    """Context on D ranks is D times as long."""

    PAGES = 4                        # of one rank at D = 1, and its sink page

    def run_with(self, D_, ids, n):
        kv = (self.PAGES + 1) * 64 * TOKEN_BYTES
        flags = ["--tp", 8] + (["--dcp-size", D_] if D_ > 1 else [])
        with daemon(*flags, kv=kv, context=0) as d, d.client() as c:
            return self.ask(c, ids, n)

    def ask(self, c, ids, n):
        try:
            return c.generate(tokens=ids, max_tokens=n, **GREEDY,
                              flags=D.IGNORE_EOS)
        except D.DcpError as e:
            a = D.Answer()
            a.error, a.error_text = e.errno, str(e)
            return a

    def setUp(self):
        e = {x["name"]: x for x in read_json(TINY, "reference.json")}
        self.long = e["recall64-0"]

    def test_a_request_longer_than_one_ranks_pool_is_served_at_d8(self):
        ids, want = self.long["ids"], self.long["greedy"]
        self.assertGreater(len(ids), self.PAGES * 64 * 3)
        a = self.run_with(1, ids, len(want))
        self.assertIsNotNone(a.error, "one rank's pool held it all")
        self.assertRegex(a.error_text, r"\d")
        a = self.run_with(8, ids, len(want))
        self.assertEqual(a.error_text, None)
        self.assertEqual(a.tokens, want)

    def test_near_capacity_cancelled_then_a_short_one_is_answered(self):
        kv = (self.PAGES + 1) * 64 * TOKEN_BYTES
        with daemon("--tp", 8, "--dcp-size", 8, "--chunked-prefill-size", 64,
                    kv=kv, context=0) as d, d.client() as c:
            ids = (self.long["ids"] * 3)[:self.PAGES * 8 * 64 - 16]
            for _ in range(3):
                r = c.submit(tokens=ids, max_tokens=8, **GREEDY)
                self.assertIsNone(c.next(0.05), "ended before the cancel")
                c.cancel(r)
                self.assertEqual(c.wait([r])[0].finish, "abort")
                a = c.generate(text="hi", max_tokens=4, **GREEDY,
                               flags=D.IGNORE_EOS)
                self.assertEqual((a.error_text, len(a.tokens)), (None, 4))
            s = d.ctl_json("status")
            self.assertEqual(find(s, "pages_used"), 0)
            self.assertEqual(find(s, "pages_free") + find(s, "pages_cached"),
                             find(s, "pages_total"))
            self.assertGreaterEqual(find(s, "pages_total"), self.PAGES * 8)
            self.assertEqual(d.ctl("check").returncode, 0)


def find(obj, key):
    """The value of a key, wherever it is in a JSON answer."""
    if isinstance(obj, dict):
        if key in obj:
            return obj[key]
        obj = list(obj.values())
    if isinstance(obj, list):
        for v in obj:
            r = find(v, key)
            if r is not None:
                return r
    return None


class OneDaemon(unittest.TestCase):
    """Sampling, log-probabilities and ends, at tp 8, D = 8."""

    @classmethod
    def setUpClass(cls):
        cls.d = daemon(*LAYOUTS["tp8+dcp8"]).__enter__()
        cls.c = cls.d.client()
        cls.ref = {e["name"]: e for e in read_json(TINY, "reference.json")}
        cls.numpy = None

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.d.stop()

    @classmethod
    def logprobs(cls, ids):
        """[T][V] natural log-softmax of the numpy reference."""
        if cls.numpy is None:
            cls.numpy = reference(TINY)
        lg = cls.numpy.forward(ids)["logits"]
        lg = lg - lg.max(-1, keepdims=True)
        return lg - np.log(np.exp(lg).sum(-1, keepdims=True))

    def test_top_logprobs_are_the_references(self):
        e = self.ref["prose1"]
        n = 6
        a = self.c.generate(tokens=e["ids"], max_tokens=n, **GREEDY,
                            flags=D.LOGPROBS, top_logprobs=5)
        want = self.logprobs(e["ids"] + e["greedy"][:n])[len(e["ids"]) - 1:]
        self.assertEqual(len(a.logprobs), n)
        for (tok, lp, top), w, g in zip(a.logprobs, want, e["greedy"]):
            self.assertEqual(tok, g)
            self.assertLess(abs(lp - w[g]), 1e-3)
            best = np.argsort(-w)[:5]
            self.assertEqual([t for t, _ in top], best.tolist())
            for t, x in top:
                self.assertLess(abs(x - w[t]), 1e-3)

    def test_echo_scores_the_prompt_as_the_reference(self):
        e = self.ref["math0"]
        a = self.c.generate(tokens=e["ids"], max_tokens=1, **GREEDY,
                            flags=D.LOGPROBS | D.ECHO, top_logprobs=2)
        want = self.logprobs(e["ids"])
        got = a.prompt_logprobs
        self.assertIn(len(got), (len(e["ids"]), len(e["ids"]) - 1))
        off = len(e["ids"]) - len(got)
        for i, (tok, lp, _) in enumerate(got):
            k = i + off
            self.assertEqual(tok, e["ids"][k])
            if k > 0:
                self.assertLess(abs(lp - want[k - 1][tok]), 1e-3)

    def test_logprobs_do_not_see_temperature_or_bias(self):
        e = self.ref["prose0"]
        w = self.logprobs(e["ids"])[-1]
        a = self.c.generate(tokens=e["ids"], max_tokens=1, temperature=2.0,
                            seed=3, flags=D.LOGPROBS, top_logprobs=1,
                            logit_bias={e["greedy"][0]: -5.0})
        tok, lp, top = a.logprobs[0]
        self.assertLess(abs(lp - w[tok]), 1e-3)
        self.assertEqual(top[0][0], int(w.argmax()))

    def test_sampled_frequencies_follow_the_softmax(self):
        """Chi-square over 600 fixed seeds; 99.9% of true samplers pass, and
        with fixed seeds the outcome never changes."""
        e = self.ref["prose0"]
        T = 1.3
        w = self.logprobs(e["ids"])[-1] / T
        p = np.exp(w - w.max())
        p /= p.sum()
        n = 600
        got = self.c.batch([dict(tokens=e["ids"], max_tokens=1, seed=s,
                                 temperature=T, flags=D.IGNORE_EOS)
                            for s in range(n)], 16)
        counts = np.zeros(len(p))
        for a in got:
            counts[a.tokens[0]] += 1
        top = np.argsort(-p)[:20]
        exp = np.append(p[top], 1 - p[top].sum()) * n
        obs = np.append(counts[top], n - counts[top].sum())
        chi = float(((obs - exp) ** 2 / exp).sum())
        self.assertLess(chi, 45.3)               # 20 degrees, 0.1%
        self.assertGreater(len(np.unique([a.tokens[0] for a in got])), 20)

    def test_supports_of_top_k_top_p_and_min_p(self):
        e = self.ref["prose0"]
        w = self.logprobs(e["ids"])[-1]
        order = np.argsort(-w)
        p = np.exp(w[order])
        self.assertGreater(p[1], 0.05 * p[0])      # two can be seen at least
        cases = [(dict(top_k=3), set(order[:3])),
                 (dict(top_p=0.5), set(order[:int((np.cumsum(p) < 0.5).sum())
                                              + 1])),
                 (dict(min_p=0.05), set(order[p >= 0.05 * p[0]]))]
        for how, support in cases:
            with self.subTest(**how):
                got = self.c.batch([dict(tokens=e["ids"], max_tokens=1,
                                         seed=s, temperature=1.0, **how)
                                    for s in range(120)], 16)
                seen = {a.tokens[0] for a in got if a.tokens}
                self.assertLessEqual(seen, {int(x) for x in support})
                self.assertGreater(len(seen), 1)

    def test_a_seed_gives_the_same_answer_alone_and_in_a_batch(self):
        one = dict(tokens=self.ref["prose1"]["ids"], max_tokens=24, seed=77,
                   temperature=1.0, flags=D.IGNORE_EOS)
        alone = self.c.generate(**one).tokens
        others = [dict(tokens=self.ref[n]["ids"], max_tokens=30, seed=i,
                       temperature=1.0, flags=D.IGNORE_EOS)
                  for i, n in enumerate(self.ref)]
        batch = self.c.batch(others[:5] + [one] + others[5:], 13)
        self.assertEqual(batch[5].tokens, alone)
        again = self.c.generate(**dict(one, seed=78)).tokens
        self.assertNotEqual(again, alone)

    def test_ends(self):
        e = self.ref["prose1"]            # 30 299 282 306 433 544 ...
        full = self.c.generate(tokens=e["ids"], max_tokens=12, **GREEDY)
        self.assertEqual((full.finish, len(full.tokens)), ("length", 12))
        self.assertEqual(full.usage["completion_tokens"], 12)
        third = e["greedy"][2]
        a = self.c.generate(tokens=e["ids"], max_tokens=12, **GREEDY,
                            stop_ids=[third])
        self.assertEqual(a.finish, "stop")
        self.assertLessEqual(len(a.tokens), 3)
        a = self.c.generate(tokens=e["ids"], max_tokens=12, **GREEDY,
                            stop_ids=[third], min_tokens=5)
        self.assertNotIn(third, a.tokens[:5])
        words = full.text.split()
        a = self.c.generate(tokens=e["ids"], max_tokens=12, **GREEDY,
                            stop=[words[2]])
        self.assertEqual(a.finish, "stop")
        self.assertEqual(a.text, full.text[:full.text.index(words[2])])
        m = self.ref["math0"]
        a = self.c.generate(tokens=m["ids"], max_tokens=40, **GREEDY)
        self.assertEqual(a.finish, "stop")
        a = self.c.generate(tokens=m["ids"], max_tokens=40, **GREEDY,
                            flags=D.IGNORE_EOS)
        self.assertEqual((a.finish, len(a.tokens)), ("length", 40))

    def test_logit_bias_bans_and_forces(self):
        e = self.ref["prose1"]
        a = self.c.generate(tokens=e["ids"], max_tokens=4, **GREEDY,
                            logit_bias={e["greedy"][0]: -math.inf})
        self.assertNotIn(e["greedy"][0], a.tokens)
        a = self.c.generate(tokens=e["ids"], max_tokens=4, **GREEDY,
                            logit_bias={1234: 100.0})
        self.assertEqual(a.tokens, [1234] * 4)

    def test_penalties_follow_their_definition(self):
        e = self.ref["prose0"]            # its greedy answer goes round
        ids = e["ids"] + e["greedy"][:8]
        lg = reference(TINY).forward(ids)["logits"][-1]
        r = 3.0
        pen = lg.copy()
        for t in set(ids):                # seen in the prompt, once or more
            pen[t] = lg[t] / r if lg[t] > 0 else lg[t] * r
        want = int(pen.argmax())
        self.assertNotEqual(want, int(lg.argmax()))
        a = self.c.generate(tokens=ids, max_tokens=1, repetition_penalty=r,
                            **GREEDY)
        self.assertEqual(a.tokens, [want])
        # Presence and frequency count what was generated, not the prompt.
        a = self.c.generate(tokens=ids, max_tokens=1, presence_penalty=9.0,
                            frequency_penalty=9.0, **GREEDY)
        self.assertEqual(a.tokens, [int(lg.argmax())])
        a = self.c.generate(tokens=e["ids"], max_tokens=20,
                            presence_penalty=100.0, flags=D.IGNORE_EOS,
                            **GREEDY)
        self.assertEqual(len(set(a.tokens)), 20)

    def test_emission_is_one_event_a_token_and_one_end(self):
        r = self.c.submit(tokens=self.ref["prose1"]["ids"], max_tokens=16,
                          **GREEDY)
        seqs, ends, n = [], 0, 0
        while not ends:
            ev = self.c.next(30)
            self.assertEqual(ev.request, r)
            seqs.append(ev.seq)
            n += len(ev.tokens)
            ends += ev.type != D.EV_DELTA
        self.assertEqual(seqs, list(range(len(seqs))))
        self.assertEqual(n, 16)
        self.c.live.pop(r)

    def test_chat_reasons_and_answers(self):
        q = ("Ann has 23 pears. Ben gives Ann 19 more. How many pears does "
             "Ann have now?")
        a = self.c.generate(chat=[{"role": "user", "content": q}],
                            max_tokens=64, **GREEDY)
        self.assertEqual(a.text.strip(), "42")
        self.assertIn("42", a.reasoning)
        self.assertEqual(a.finish, "stop")

    def test_tool_call_with_typed_arguments(self):
        tools = [{"type": "function", "function": {
            "name": "get_weather", "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {
                "city": {"type": "string"}}, "required": ["city"]}}},
            {"type": "function", "function": {
                "name": "add", "description": "Add two integers",
                "parameters": {"type": "object", "properties": {
                    "a": {"type": "integer"}, "b": {"type": "integer"}},
                    "required": ["a", "b"]}}}]
        a = self.c.generate(
            chat=[{"role": "user", "content": "Is it cold in Oslo today?"}],
            options={"tools": tools}, max_tokens=64, **GREEDY)
        self.assertEqual(a.finish, "tool_calls")
        self.assertEqual(len(a.calls), 1)
        self.assertEqual(a.calls[0][0], "get_weather")
        self.assertEqual(json.loads(a.calls[0][1]), {"city": "Oslo"})


if __name__ == "__main__":
    main()  # noqa: F405
