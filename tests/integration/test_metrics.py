#!/usr/bin/env python3
"""/metrics, read by Prometheus' own parser for Python: every counter of the
daemon is there with its value, ranks are labels, histograms add up, the Grafana
dashboard asks for nothing that is not there, and the names of other engines
only come when asked for.
"""
import json
import math
import os
import re
import sys
import tempfile

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import venv_for  # noqa: E402

venv_for.use("clients")
from prometheus_client.parser import text_string_to_metric_families  # noqa
from dcpclient import IGNORE_EOS  # noqa: E402
from httpd import HttpDaemon  # noqa: E402

MODEL = os.path.join(srcdir, "models/dcp-tiny")
DASHBOARD = os.path.join(srcdir, "doc/grafana/dcpd.json")


def scrape(d):
    status, headers, body = d.ask("GET", "/metrics")
    assert status == 200, (status, body)
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(body.decode()))
    names = [(f.name, f.type) for f in families]
    assert len(set(names)) == len(names), "a family comes twice"
    for f in families:
        assert f.documentation and f.type != "unknown", f
        assert f.type != "counter" or all(
            s.name.endswith("_total") for s in f.samples), f
    return {s.name + "".join(f"{{{k}={v}}}" for k, v in
                             sorted(s.labels.items())): s.value
            for f in families for s in f.samples}


def same_as_status(d):
    """The one table: no counter is missing, none differs. A scrape."""
    before = d.ctl_json("status")["counters"]
    seen = scrape(d)
    after = d.ctl_json("status")["counters"]
    same = 0
    for name, value in before.items():
        full = "dcp:" + name
        if full not in seen:
            full += "_total"
        if after[name] == value:    # a client may just be leaving
            assert seen[full] == value, (name, value, seen[full])
            same += 1
    assert same > 25, (before, after)
    return seen


def histogram(seen, name):
    """(count, sum); buckets grow, and the last has all."""
    b = [(math.inf if m[1] == "+Inf" else float(m[1]), v) for k, v in
         seen.items() if (m := re.fullmatch(rf"{name}_bucket\{{le=(.*)\}}", k))]
    assert len(b) > 10 and b == sorted(b), b
    assert [n for _, n in b] == sorted(n for _, n in b), b
    assert b[-1] == (math.inf, seen[name + "_count"])
    return seen[name + "_count"], seen[name + "_sum"]


def ask_for_tokens(d):
    """No request of these reaches the model."""
    ids = d.post("/tokenize", {"prompt": "The river"})["tokens"]
    d.post("/detokenize", {"tokens": ids})
    d.ask("POST", "/tokenize", {"messages": [{"role": "king"}]})


def own_names(d):
    ask_for_tokens(d)
    with d.client() as c:
        for n in range(3):
            c.generate(tokens=[1, 2, 3 + n] * 50, max_tokens=8,
                       temperature=0.0, flags=IGNORE_EOS)
    seen = same_as_status(d)
    assert not [k for k in seen if not k.startswith("dcp:")]
    assert seen["dcp:info{model_name=dcp-tiny}{version="
                + d.ctl_json("status")["version"] + "}"] == 1
    assert seen["dcp:ready"] == 1
    ranks = d.ctl_json("status")["ranks"]
    assert len(ranks) == 4
    for r in ranks:
        for key in ("tokens", "pages_used", "pages_cached", "pages_total"):
            assert seen[f"dcp:rank_{key}{{rank={r['rank']}}}"] == r[key]
    c = d.ctl_json("status")["counters"]
    assert histogram(seen, "dcp:e2e_seconds")[0] == 3
    assert seen["dcp:requests_total"] == 3
    assert seen["dcp:requests_finished_total"] == 3
    assert seen["dcp:requests_refused_total"] == 0
    n, s = histogram(seen, "dcp:ttft_seconds")
    assert n == 3 and abs(s - c["ttft_ns"] * 1e-9) < 1e-6, (n, s)
    n, s = histogram(seen, "dcp:itl_seconds")
    assert n == c["later_tokens"] > 0
    # Tokens that came together share their wait, in whole nanoseconds.
    assert abs(s - c["itl_ns"] * 1e-9) < 1e-6, (s, c["itl_ns"])
    return seen


def dashboard(seen):
    with open(DASHBOARD) as f:
        board = json.load(f)
    families = {k.split("{")[0] for k in seen}
    asked = {n for p in board["panels"] for t in p["targets"]
             for n in re.findall(r"dcp:[a-z0-9_]+", t["expr"])}
    assert len(asked) > 20
    assert asked <= families, asked - families
    ids = [p["id"] for p in board["panels"]]
    assert len(set(ids)) == len(ids)


def compat(d):
    """What their dashboards ask for, with the label they group by."""
    ask_for_tokens(d)
    with d.client() as c:
        c.generate(tokens=[1, 2, 3] * 50, max_tokens=8, flags=IGNORE_EOS)
    seen = same_as_status(d)
    m = "{model_name=my \"model\"}"
    for name, value in {
            "sglang:num_running_reqs": 0, "sglang:num_queue_reqs": 0,
            "sglang:token_usage": 0, "sglang:prompt_tokens_total": 150,
            "sglang:generation_tokens_total": 8,
            "sglang:num_requests_total": 1, "sglang:cache_hit_rate": 0,
            "sglang:cached_tokens_total": 0,
            "sglang:time_to_first_token_seconds_count": 1,
            "sglang:inter_token_latency_seconds_count":
            seen["dcp:later_tokens_total"],
            "sglang:e2e_request_latency_seconds_count": 1,
            "vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0, "vllm:prompt_tokens_total": 150,
            "vllm:generation_tokens_total": 8, "vllm:num_preemptions_total": 0,
            "vllm:prefix_cache_queries_total": 150,
            "vllm:prefix_cache_hits_total": 0,
            "vllm:request_success_total": 1,
            "vllm:time_to_first_token_seconds_count": 1,
            "vllm:time_per_output_token_seconds_count":
            seen["dcp:later_tokens_total"],
            "vllm:e2e_request_latency_seconds_count": 1}.items():
        assert seen[name + m] == value, (name, seen.get(name + m))
    assert "sglang:gen_throughput" + m in seen


def main():
    with HttpDaemon("--model", MODEL, "--tp", 4, "--dcp-size", 4,
                    "--kv-bytes-per-rank", 4000000) as d:
        dashboard(own_names(d))
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        json.dump({"plugins": {"http": {
            "metrics_compat": True, "served_model_name": 'my "model"'}}}, f)
        f.flush()
        with HttpDaemon("--model", MODEL, "--config", f.name) as d:
            compat(d)
    print("ok")


if __name__ == "__main__":
    main()
