#!/usr/bin/env python3
"""Write tests/unit/golden_rope.h: RoPE constants by ref_dsa.py, for tests/unit/t_config.c.

    tools/golden_rope.py > tests/unit/golden_rope.h      # needs numpy
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np  # noqa: E402
import ref_dsa as R  # noqa: E402

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "configs")
# name, base config, changes of its rope keys (None deletes)
CASES = [
    ("glm-5", "glm-5", {}),
    ("glm-5.2", "glm-5.2", {}),
    ("deepseek-v3.2", "deepseek-v3.2", {}),
    ("mscale pair", "deepseek-v3.2", dict(mscale=0.7, mscale_all_dim=0.3)),
    ("no mscale", "deepseek-v3.2", dict(mscale=None, mscale_all_dim=None)),
    ("all_dim alone", "deepseek-v3.2", dict(mscale=None)),
    ("mscale zero", "deepseek-v3.2", dict(mscale=0)),
    ("attention_factor", "deepseek-v3.2", dict(attention_factor=1.25)),
    ("not truncated", "deepseek-v3.2", dict(truncate=False, beta_fast=20, beta_slow=2)),
    ("ramp of no width", "deepseek-v3.2", dict(truncate=False, beta_fast=1, beta_slow=1)),
    ("ramp past the end", "deepseek-v3.2", dict(rope_theta=10, original_max_position_embeddings=1000000)),
    ("factor one", "deepseek-v3.2", dict(factor=1)),
    ("short context", "deepseek-v3.2", dict(original_max_position_embeddings=8, factor=3.5)),
]


def main():
    print("/* Made by tools/golden_rope.py from tools/ref_dsa.py; do not edit. */")
    print("static const struct golden_rope {")
    print("\tconst char *name, *base, *change;\n\tfloat attn_scale, factor, inv_freq[32];\n} golden_rope[] = {")
    for name, base, change in CASES:
        d = json.load(open(f"{CONFIGS}/{base}.json"))
        key = "rope_parameters" if "rope_parameters" in d else "rope_scaling"
        d[key] = {k: v for k, v in dict(d[key], **change).items() if v is not None}
        c = R.Cfg(d)
        inv, af = R.rope_inv_freq(c)
        assert len(inv) == 32

        def f(x):
            s = f"{float(np.float32(x)):.9g}"
            return s + ("f" if "." in s or "e" in s else ".0f")

        print(f'\t{{ "{name}", "{base}",\n\t    {json.dumps(json.dumps(change))},\n\t    {f(c.scaling)}, {f(af)}, {{')
        for i in range(0, 32, 3):
            print("\t\t" + ", ".join(f(x) for x in inv[i:i + 3]) + ",")
        print("\t} },")
    print("};")


main()
