"""What the parity tests share: fixtures, layouts, the fwd driver, comparisons.

The reference is tools/ref_dsa.py (numpy, float64), which was checked against
transformers, and the outputs stored beside each fixture. Nothing here computes
an expected value with dcpd's own code, except where a test's name says "as
tp1": there one layout is held against another.

Run in the build tree, as `make check` does, or with builddir set to it.
"""
import json
import os
import subprocess
import sys
import tarfile
import unittest

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
LONG = os.environ.get("DCPD_TEST_LONG", "") not in ("", "0")
WORK = os.path.join(BUILD, "tests", "parity", "work")

try:
    import numpy as np
except ImportError:
    print("needs numpy: apt-get install python3-numpy")
    sys.exit(77)

sys.path.insert(0, os.path.join(SRC, "tools"))
import ref_dsa as R  # noqa: E402

FIXTURES = ["glm-tiny", "dsv32-yarn", "glm-kdims8", "glm-kdims8-fp8",
            "glm-kdims8-w4afp8"]
TINY = os.path.join(SRC, "models", "dcp-tiny")


def fixture(name):
    """The unpacked folder of a fixture, in the build tree."""
    root = os.path.join(WORK, "fixtures")
    path = os.path.join(root, name)
    if not os.path.exists(os.path.join(path, "ref.safetensors")):
        tmp = os.path.join(root, f".{name}.{os.getpid()}")
        os.makedirs(tmp, exist_ok=True)
        tar = os.path.join(SRC, "tests/data/fixtures", name + ".tar.xz")
        with tarfile.open(tar) as t:
            t.extractall(tmp)
        try:
            os.rename(os.path.join(tmp, name), path)
        except OSError:        # another test unpacked it meanwhile
            pass
    return path


def read_json(*path):
    with open(os.path.join(*path)) as f:
        return json.load(f)


def raw_weights(path):
    """{name: (dtype, array)} of every shard of a folder."""
    raw = {}
    for f in sorted(os.listdir(path)):
        if f.startswith("model") and f.endswith(".safetensors"):
            raw.update(R.load_safetensors(os.path.join(path, f)))
    return raw


def weights(path):
    """{name: float32 array}, quantised tensors dequantised by their format's
    own definition (FP8 blocks of 128x128; W4AFP8 pairs, low nibble first)."""
    raw, out = raw_weights(path), {}
    for n, (dt, a) in raw.items():
        if n.endswith(("_scale_inv", "input_scale")):
            continue
        s = raw.get(n + "_scale_inv")
        if s is None:
            out[n] = R.to_f32(dt, a)
        elif dt == "F8_E4M3":
            big = np.repeat(np.repeat(s[1], 128, 0), 128, 1)
            out[n] = R.to_f32(dt, a) * big[:a.shape[0], :a.shape[1]]
        else:
            b = a.view(np.uint8)
            q = np.stack([b & 15, b >> 4], -1).reshape(a.shape[0], -1)
            q = q.astype(np.int8)
            q[q > 7] -= 16
            out[n] = q * np.repeat(s[1], 128, 1)
    return out


def reference(path):
    cfg = read_json(path, "config.json")
    return R.Model(cfg, weights(path))


def write_model(path, cfg, w, files=()):
    """A folder with config.json and one safetensors file of float32 (what the
    test changed is kept exactly; bf16 values are exact in float32)."""
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(cfg, f)
    R.save_safetensors(os.path.join(path, "model.safetensors"),
                       {n: ("F32", np.asarray(a, np.float32))
                        for n, a in w.items()})
    for f in files:
        with open(f, "rb") as a, \
                open(os.path.join(path, os.path.basename(f)), "wb") as b:
            b.write(a.read())
    return path


# --- layouts ---------------------------------------------------------------


def layouts(heads, worlds=(1, 2, 4, 8), ways=("q", "kv", "a2a")):
    """Every (tp, cp, dcp, strategy, way) whose span divides the heads."""
    out = []
    for tp in worlds:
        if heads % tp:
            continue
        for cp in (1, 2, 4, 8):
            if tp % cp:
                continue
            for dcp in (1, 2, 4, 8):
                if tp % dcp:
                    continue
                for st in ("interleave", "zigzag") if cp > 1 else (None,):
                    for way in ways if dcp > 1 else ("kv",):
                        d = dict(tp=tp, cp=cp, dcp=dcp, way=way)
                        if st:
                            d["strategy"] = st
                        out.append(d)
    return out


def label(d):
    s = f"tp{d.get('tp', 1)}"
    if d.get("cp", 1) > 1:
        s += f"+cp{d['cp']}-{d.get('strategy', 'interleave')}"
    if d.get("dcp", 1) > 1:
        s += f"+dcp{d['dcp']}-{d.get('way', 'kv')}"
    for k in ("chunk", "batch", "decode_rows", "kv", "threads"):
        if k in d:
            s += f" {k} {d[k]}"
    return s


# --- the driver ------------------------------------------------------------


class Fwd:
    """tests/parity/fwd, one process for many jobs."""

    def __init__(self):
        self.exe = os.environ.get(
            "DCPD_FWD", os.path.join(BUILD, "tests/parity/fwd"))
        os.makedirs(WORK, exist_ok=True)
        self.out = os.path.join(WORK, f"fwd.{os.getpid()}")
        self.p = None

    def start(self):
        self.p = subprocess.Popen([self.exe], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)

    def run(self, **job):
        """The answer of one job; .logits [entries][vocab] and .select
        {(request, position, layer): positions} are read back."""
        job.setdefault("out", self.out)
        job["prompts"] = [list(map(int, p)) for p in job["prompts"]]
        a = self.ask(job)
        if "error" in a:
            return a
        a["logits"] = np.fromfile(job["out"] + ".logits", np.float32) \
            .reshape(-1, a["vocab"])
        if job.get("select"):
            a["select"] = self.selections(job["out"] + ".select")
        return a

    def encode(self, model, texts):
        """Ids of each text, by the tokenizer of the model's folder."""
        a = self.ask(dict(model=model, encode=texts))
        if "error" in a:
            raise AssertionError(a["error"])
        return a["ids"]

    def ask(self, job):
        if self.p is None:
            self.start()
        self.p.stdin.write(json.dumps(job) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            rc = self.end()
            raise AssertionError(f"fwd died with status {rc} in {label(job)}")
        return json.loads(line)

    def end(self):
        with self.p:
            self.p.stdin.close()
        rc, self.p = self.p.returncode, None
        return rc

    @staticmethod
    def selections(path):
        u, i, out = np.fromfile(path, np.uint32), 0, {}
        while i < len(u):
            req, pos, layer, n = (int(x) for x in u[i:i + 4])
            out[req, pos, layer] = u[i + 4:i + 4 + n]
            i += 4 + n
        return out

    def close(self):
        if self.p is not None:
            rc = self.end()
            if rc != 0:
                raise AssertionError(f"fwd ended with status {rc}")
        for ext in ("logits", "select"):
            if os.path.exists(f"{self.out}.{ext}"):
                os.unlink(f"{self.out}.{ext}")


class ParityCase(unittest.TestCase):
    """One driver per class; job() fails the test on an error answer."""

    @classmethod
    def setUpClass(cls):
        cls.fwd = Fwd()

    @classmethod
    def tearDownClass(cls):
        cls.fwd.close()

    def job(self, **job):
        a = self.fwd.run(**job)
        self.assertNotIn("error", a, f"{label(job)}: {a.get('error')}")
        return a


def first_difference(got, want, gaps, gap=1e-3):
    """Where greedy tokens differ although every earlier and this gap of the
    wanted side is above `gap`; None if they agree as far as can be asked."""
    for i, w in enumerate(want):
        if gaps is not None and (gaps[i] is None or gaps[i] <= gap):
            return None
        if i >= len(got) or got[i] != w:
            return i
    return None


def gaps_of(answer, prompts):
    """[request][step] arg-max gap of each generated token."""
    g = [dict() for _ in prompts]
    for (req, pos), gap in zip(answer["entries"], answer["gaps"]):
        g[req][pos] = gap
    return [[g[i].get(len(p) - 1 + k)
             for k in range(len(answer["tokens"][i]))]
            for i, p in enumerate(prompts)]


def main():
    unittest.main(verbosity=2)
