#!/usr/bin/python3
"""Every flag acts, is checked or is refused: one test for each flag.

Where another test shows it, ELSEWHERE names the file and a word to find there;
whether all flags of the table are here is a test itself.
"""
import grp
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import dcpclient  # noqa: E402
from daemon import Daemon, binary  # noqa: E402
from suite import run, until  # noqa: E402

TINY = os.path.join(SRC, "models", "dcp-tiny")
NULL = ("--engine", "null")
REAL = ("--model", TINY, "--kv-bytes-per-rank", "16MiB")
CHAT = [{"role": "user", "content": "Hugo buys 10 bags with 2 cups in each "
         "bag. How many cups is that?"}]

ELSEWHERE = {
    "model": ("test_model.py", "--model"),
    "attn-dp-size": ("startup.sh", "--attn-dp-size"),
    "attn-cp-size": ("test_sglang_flags.py", "attn_cp_size"),
    "tp": ("test_sglang_flags.py", '"tp"'),
    "dcp-size": ("test_sglang_flags.py", "dcp_size"),
    "cp-strategy": ("test_layouts.py", "zigzag"),
    "enable-prefill-cp": ("t_options.c", "--enable-prefill-cp=false"),
    "enable-cp-decode-attn-tp": ("t_options.c",
                                 "--enable-cp-decode-attn-tp=false"),
    "quantization": ("t_options.c", "--quantization"),
    "device": ("startup.sh", "--device cuda"),
    "dcp-comm": ("t_options.c", "--dcp-comm"),
    "disable-peer-access": ("t_options.c", "--disable-peer-access"),
    "dcp-wire": ("test_wire.py", "wire"),
    "ranks-per-gpu": ("t_options.c", "--ranks-per-gpu"),
    "cuda-graph-max-bs": ("t_options.c", "--cuda-graph-max-bs"),
    "fp8-gemm-backend": ("plan.sh", "--fp8-gemm-backend"),
    "prefill-way": ("t_options.c", "--prefill-way a2a"),
    "host-cache-bytes": ("test_host.py", "--host-cache-bytes"),
    "config": ("t_options.c", "config_file"),
    "socket": ("daemon.sh", "--socket"),
    "drain-timeout": ("test_http_cases.py", "--drain-timeout"),
    "stuck-after": ("test_service.py", "--stuck-after"),
    "state-dir": ("test_service.py", "--state-dir"),
    "http": ("httpd.py", "--http"),
    "port": ("t_plugins.c", "--port"),
    "host": ("t_plugins.c", "--host"),
    "api-key": ("t_plugins.c", "--api-key"),
    "api-key-file": ("test_openai.py", "--api-key-file"),
    "served-model-name": ("test_openai.py", "--served-model-name"),
    "unix": ("test_unix.py", "--unix"),
    "plugins": ("test_plugins.py", "--plugins"),
    "plugin-dir": ("test_plugins.py", "--plugin-dir"),
    "null-fail-after": ("test_service.py", "--null-fail-after"),
    "plan": ("plan.sh", "--plan"),
    "help": ("daemon.sh", "--help"),
    "help-man": ("man-flags", "--help-man"),
    "help-conf": ("man-flags", "--help-conf"),
    "version": ("check", "--version"),
}


# --- helpers -----------------------------------------------------------------

def refused(*flags):
    """The last line of a daemon that will not start with them."""
    with tempfile.TemporaryDirectory() as tmp:
        r = subprocess.run([binary("dcpd"), "--socket", tmp + "/s",
                            *map(str, flags)], capture_output=True, text=True,
                           timeout=120)
    assert r.returncode == 78, (flags, r.returncode, r.stderr[-500:])
    return r.stderr.splitlines()[-1]


def checked(flag, good, bad):
    """One value is legal and starts; another is an error that names both."""
    said = refused("--model", TINY, f"--{flag}={bad}")
    assert f"--{flag}" in said and str(good) in said, said
    plan(f"--{flag}={good}")


def plan(*flags):
    r = subprocess.run([binary("dcpd"), "--model", TINY, "--plan", "--json",
                        *map(str, flags)], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 0, (flags, r.stderr)
    return json.loads(r.stdout)


def tokens(*flags):
    """What the model says to a prompt: ids and their logprobs."""
    with Daemon(*flags) as d, d.client() as c:
        a = c.generate(tokens=list(range(30, 70)), max_tokens=12,
                       temperature=0.0, flags=dcpclient.LOGPROBS |
                       dcpclient.IGNORE_EOS)
        return a.tokens, [round(x[1], 5) for x in a.logprobs]


def threads(*flags):
    with Daemon(*flags) as d:
        return len(os.listdir(f"/proc/{d.p.pid}/task"))


def connects(d, n):
    """How many of n clients come in."""
    had = []
    try:
        for _ in range(n):
            had.append(d.client(timeout=5))
    except dcpclient.DcpError:
        pass
    finally:
        for c in had:
            c.close()
    return len(had)


def info(*flags):
    with Daemon(*NULL, *flags) as d, d.client() as c:
        return c.info()


def json_of_a_plan(_):
    """--json is of --plan alone."""
    assert plan()["model"] == "dcp-tiny"        # with "--json"
    assert "--plan" in refused(*NULL, "--json")


# --- the model ---------------------------------------------------------------

def load_format_and_random_seed(_):
    """dummy needs config.json alone; its weights follow the seed."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(TINY + "/config.json", tmp)
        base = ("--model", tmp, "--load-format", "dummy",
                "--kv-bytes-per-rank", "16MiB")
        one = tokens(*base, "--random-seed", 1)
        assert tokens(*base, "--random-seed", 1) == one
        assert tokens(*base, "--random-seed", 2) != one


def latent_norm_eps(_):
    """config: rms_norm_eps, here made large enough to see."""
    with tempfile.TemporaryDirectory() as tmp:
        for f in os.listdir(TINY):
            shutil.copy(f"{TINY}/{f}", tmp)
        with open(tmp + "/config.json") as f:
            cfg = json.load(f)
        cfg["rms_norm_eps"] = 0.01
        with open(tmp + "/config.json", "w") as f:
            json.dump(cfg, f)
        base = ("--model", tmp, "--kv-bytes-per-rank", "16MiB")
        by_default = tokens(*base)
        assert tokens(*base, "--latent-norm-eps", "1e-6") == by_default
        assert tokens(*base, "--latent-norm-eps", "config") != by_default


def quantize_activations(_):
    """Of products with FP8 weights alone."""
    with tempfile.TemporaryDirectory() as tmp:
        with tarfile.open(SRC + "/tests/data/fixtures/glm-kdims8-fp8.tar.xz"
                          ) as t:
            t.extractall(tmp)
        model, = [p for p, _, names in os.walk(tmp) if "config.json" in names]
        base = ("--model", model, "--kv-bytes-per-rank", "16MiB")
        assert tokens(*base) != tokens(*base, "--quantize-activations")
    assert "not quantised" in refused(*REAL, "--quantize-activations")


def max_context(_):
    assert info("--max-context", 777)["max_context"] == 777


def trust_remote_code(_):
    with Daemon(*NULL, "--trust-remote-code") as d:
        assert "no code of a model folder is ever run" in d.tail(50)


def checked_flags(_):
    checked("disable-shared-experts-fusion", "true", "false")
    checked("attention-backend", "nsa", "fa3")
    checked("dsa-decode-backend", "flashmla_kv", "fa3")
    checked("dsa-prefill-backend", "flashmla_kv", "tilelang")
    checked("page-size", 64, 16)


# --- memory ------------------------------------------------------------------

def kv_cache_dtype_and_index_cache_dtype(_):
    f32, fp8 = (plan("--kv-cache-dtype", t) for t in ("f32", "fp8_e4m3"))
    assert f32["token_bytes_per_rank"] > 3 * fp8["token_bytes_per_rank"]
    wide = plan("--index-cache-dtype", "f32")
    assert wide["index_dtype"] == "f32"
    assert wide["page_bytes_index"] > 3 * plan()["page_bytes_index"]


def kv_bytes_per_rank_and_mem_fraction_static(_):
    assert plan("--kv-bytes-per-rank", "64MiB")["kv_budget_per_rank"] == \
        64 << 20
    some, more = (plan("--mem-fraction-static", x)["kv_budget_per_rank"]
                  for x in (0.2, 0.6))
    assert more > 2 * some      # memory in use changes beside this test


def pin_fraction(_):
    with Daemon(*NULL, "--null-pages", 100, "--pin-fraction", 0.25) as d:
        assert d.ctl_json("config", "show")["pin-fraction"] == 0.25
    said = refused(*NULL, "--pin-fraction", 0.99)
    assert "--pin-fraction" in said, said


# --- batches and threads -----------------------------------------------------

def chunked_prefill_size_and_max_running_requests(_):
    i = info("--chunked-prefill-size", 96, "--max-running-requests", 5)
    assert i["chunk"] == 96 and i["max_running"] == 5


def queue_max(_):
    served = {}
    for queue in (2, 5):
        with Daemon(*NULL, "--max-running-requests", 1, "--queue-max", queue,
                    "--null-step-us", 20000) as d, d.client() as c:
            ended = c.wait([c.submit(tokens=[1, 2, 3], max_tokens=40)
                            for _ in range(12)])
            assert all(a.error in (None, -11) for a in ended)
            served[queue] = sum(a.error is None for a in ended)
    # One may have begun to run before the others came.
    assert 2 <= served[2] <= 3 and 5 <= served[5] <= 6, served


def text_threads_and_cpu_threads(_):
    assert threads(*REAL, "--text-threads", 5) - \
        threads(*REAL, "--text-threads", 2) == 3
    assert threads(*REAL, "--tp", 4, "--cpu-threads", 2) - \
        threads(*REAL, "--tp", 4, "--cpu-threads", 1) == 1


# --- text --------------------------------------------------------------------

def chat_template(_):
    got = {}
    for t in ("glm47", "glm52"):
        with Daemon(*REAL, "--chat-template", t) as d, d.client() as c:
            got[t] = c.generate(chat=CHAT, flags=dcpclient.TOKENIZE) \
                .usage["prompt_tokens"]
    # GLM-5.2's prompt begins with how hard to think.
    assert got["glm52"] > got["glm47"], got


def reasoning_parser_and_tool_call_parser(_):
    seen = {}
    for flags in (("glm45", "glm47"), ("none", "none")):
        with Daemon(*REAL, "--reasoning-parser", flags[0],
                    "--tool-call-parser", flags[1]) as d, d.client() as c:
            a = c.generate(chat=CHAT, max_tokens=64, temperature=0.0)
            seen[flags[0]] = a.reasoning, a.text
    assert seen["glm45"][0] and seen["glm45"][1].strip() == "20", seen
    assert not seen["none"][0] and "</think>" in seen["none"][1], seen


# --- sockets and clients -----------------------------------------------------

def socket_mode_and_socket_group(_):
    name = grp.getgrgid(os.getgid()).gr_name
    with Daemon(*NULL, "--socket-mode", "0640", "--socket-group", name) as d:
        s = os.stat(d.socket)
        assert stat.S_IMODE(s.st_mode) == 0o640
        assert s.st_gid == os.getgid()
    assert "--socket-group" in refused(*NULL, "--socket-group", "no-such-one")


def admin_socket(_):
    with tempfile.TemporaryDirectory() as tmp:
        at = tmp + "/admin"
        p = subprocess.Popen([binary("dcpd"), *NULL, "--socket", tmp + "/s",
                              "--admin-socket", at], stderr=subprocess.DEVNULL)
        try:
            until(lambda: subprocess.run(
                [binary("dcpctl"), "--admin-socket", at, "requests", "-j"],
                capture_output=True).returncode == 0, "it does not answer")
            assert stat.S_IMODE(os.stat(at).st_mode) == 0o600
            assert not os.path.exists(tmp + "/s.admin")
        finally:
            p.terminate()
            p.wait()


def max_clients_and_max_clients_per_user(_):
    with Daemon(*NULL, "--max-clients", 3) as d:
        assert connects(d, 5) == 3
    with Daemon(*NULL, "--max-clients-per-user", 2) as d:
        assert connects(d, 5) == 2
        with d.client(), d.client():
            r = d.ctl("generate", "--tokens", 1, "--max-tokens", 1)
            assert r.returncode == 1 and "has 2 connections" in r.stderr, r


def max_requests_per_user_and_max_bytes_per_user(_):
    with Daemon(*NULL, "--max-requests-per-user", 4, "--null-step-us",
                20000) as d, d.client() as c:
        ids = [c.submit(tokens=[1], max_tokens=40) for _ in range(6)]
        assert sum(a.error is not None for a in c.wait(ids)) == 2
    with Daemon(*NULL, "--max-bytes-per-user", "64KiB") as d, \
            d.client() as c:
        a = c.generate(tokens=[1] * 40000, max_tokens=1)
        assert a.error is not None and "--max-bytes-per-user" in a.error_text


def log_level(_):
    with Daemon(*NULL, "--log-level", "debug") as loud, \
            Daemon(*NULL, "--log-level", "warning") as quiet:
        assert "ready after" in loud.tail(50)
        assert "ready after" not in quiet.tail(50)


# --- the null engine ---------------------------------------------------------

def engine_null_vocab_pages_and_step(_):
    i = info("--null-vocab", 555, "--null-pages", 7)
    assert i["engine"] == "null" and i["vocab"] == 555
    assert i["pool_tokens"] == 7 * 64
    with Daemon(*NULL, "--null-step-us", 30000) as d, d.client() as c:
        t = time.monotonic()
        c.generate(tokens=[1], max_tokens=20)
        assert time.monotonic() - t >= 19 * 0.03


# --- all of them -------------------------------------------------------------

def every_flag_is_tested(_):
    with Daemon(*NULL) as d:
        table = set(d.ctl_json("config", "show"))
    out = subprocess.run([binary("dcpd"), "--help"], capture_output=True,
                         text=True).stdout
    table |= {w.strip(",=").removeprefix("--").split("=")[0]
              for line in out.splitlines() if line.startswith("  --") or
              line.startswith("  -") for w in line.split()[:1]
              if w.startswith("--")}
    with open(__file__) as f:
        here = f.read()
    for flag in sorted(table):
        assert flag in ELSEWHERE or f'"--{flag}"' in here or \
            f'checked("{flag}"' in here, \
            f"--{flag} has no test here, and ELSEWHERE names none"
    for flag, (name, word) in ELSEWHERE.items():
        found = [os.path.join(p, name) for top in ("tests", "tools")
                 for p, _, names in os.walk(os.path.join(SRC, top))
                 if name in names]
        assert found, f"--{flag}: there is no {name}"
        with open(found[0]) as f:
            assert word in f.read(), f"{found[0]} has no {word!r}"


TESTS = [json_of_a_plan, load_format_and_random_seed, latent_norm_eps,
         quantize_activations, max_context,
         trust_remote_code, checked_flags,
         kv_cache_dtype_and_index_cache_dtype,
         kv_bytes_per_rank_and_mem_fraction_static, pin_fraction,
         chunked_prefill_size_and_max_running_requests, queue_max,
         text_threads_and_cpu_threads, chat_template,
         reasoning_parser_and_tool_call_parser, socket_mode_and_socket_group,
         admin_socket, max_clients_and_max_clients_per_user,
         max_requests_per_user_and_max_bytes_per_user, log_level,
         engine_null_vocab_pages_and_step, every_flag_is_tested]

if __name__ == "__main__":
    run(None, *TESTS)
